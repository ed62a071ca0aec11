"""The kernels for ARM64, run by an emulator beside the kernels of this machine."""
