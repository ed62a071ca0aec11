"""The gRPC services of an agent."""
