"""Grammars that an answer must follow, as masks of tokens by llguidance; the bytes of tokens."""
