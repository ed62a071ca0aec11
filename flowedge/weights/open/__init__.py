"""Opening the part of a model that a role needs."""
