"""The settings of an agent: declarations, where each value comes from, and the documents made of them."""
