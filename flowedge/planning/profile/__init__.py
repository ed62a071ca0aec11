"""Profiles of devices, links and models: documents, and how they follow from measurements."""
