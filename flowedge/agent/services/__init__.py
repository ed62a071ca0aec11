"""The gRPC services of an agent, and what stands in front of them."""
