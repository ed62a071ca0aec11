"""The gRPC services of an agent, and the interceptors in front of them."""
