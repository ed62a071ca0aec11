"""Drafters, which propose the tokens of draft trees; a module for each kind, and how they are loaded."""
