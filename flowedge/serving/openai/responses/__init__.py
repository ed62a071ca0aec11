"""OpenAI's responses: answers as lists of items, for texts and functions; nothing is stored."""
