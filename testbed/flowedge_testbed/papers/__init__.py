"""The experiments of the five papers: what each shows, its scenario here, and both figures side by side."""
