"""Calls that a gRPC server receives: who calls, may they, is there room, the request, then the service."""
