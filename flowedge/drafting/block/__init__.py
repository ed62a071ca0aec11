"""Block heads, which predict the tokens of all depths of a draft tree in one forward."""
