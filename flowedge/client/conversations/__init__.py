"""Conversations that keep their history."""
