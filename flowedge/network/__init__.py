"""Addresses, deadlines and gRPC statuses for everything that talks over the network."""
