"""Measuring this device; everything but `device_measurement` imports torch."""
