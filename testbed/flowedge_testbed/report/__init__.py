"""The report of a benchmark: tables beside the papers' figures, plots, and how a request went."""
