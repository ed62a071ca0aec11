"""Conversations as a program writes them."""
