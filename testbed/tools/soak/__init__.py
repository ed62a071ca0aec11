"""Requests of all kinds for hours, and whether the processes grow with them."""
