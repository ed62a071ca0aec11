"""Boards that get another version while they answer."""
