"""Runs that compute little: the true path of a prompt is known, so what is left is when things happen."""
