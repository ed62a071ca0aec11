"""Runs that compute little, since the true path of each prompt is computed once and looked up."""
