"""The report of a benchmark: tables beside the papers' figures, and plots."""
