"""Endpoints that are of no API: health, metrics and the list of models."""
