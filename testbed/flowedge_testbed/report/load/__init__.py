"""The report of a scenario with load: tables, pictures and summary of its load points."""
