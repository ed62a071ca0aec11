"""Kernels in C++ that compute decoder layers on CPUs, and the choice of the build for this CPU."""
