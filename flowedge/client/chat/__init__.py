"""Conversations as a program writes them: messages, tools and grammars, with their forms on the wire."""
