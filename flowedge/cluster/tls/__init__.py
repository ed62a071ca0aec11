"""gRPC channels and servers in mutual TLS."""
