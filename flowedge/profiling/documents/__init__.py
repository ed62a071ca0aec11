"""Profiles of devices, links and models as YAML files, and how they follow from measurements."""
