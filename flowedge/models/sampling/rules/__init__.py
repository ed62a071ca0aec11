"""Draws by rules that depend on the tokens of the answer so far."""
