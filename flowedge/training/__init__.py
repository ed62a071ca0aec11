"""Training of EAGLE heads. Bad input raises BadRequestError, unusable files raise CheckpointError."""
