"""PipeSpec, a hierarchy of models, and the synchronous decoding that it is compared with."""
