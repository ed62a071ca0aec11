"""Blocks of a model's layers that run alone, with the session caches, embedding and LM head they need."""
