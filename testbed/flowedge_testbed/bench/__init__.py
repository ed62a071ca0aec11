"""Carrying a scenario out: options, workers, results and report."""
