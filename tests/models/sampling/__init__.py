"""Tests of flowedge.models.sampling."""
