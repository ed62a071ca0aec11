"""What the gateway adds to requests: measured beside the client for gRPC, in one run."""
