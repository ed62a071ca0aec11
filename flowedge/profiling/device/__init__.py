"""Measuring this device; every module imports torch."""
