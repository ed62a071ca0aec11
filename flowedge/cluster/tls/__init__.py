"""gRPC channels and servers in mutual TLS, and which calls a server takes."""
