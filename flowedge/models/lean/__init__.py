"""Decoder layers of our own, which compute what transformers' layers compute with fewer calls of torch."""
