"""Pages and tables of the documents that are made from the code."""
