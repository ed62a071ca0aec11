"""Helpers of tests of several packages: processes, private state, small models, scheduling."""
