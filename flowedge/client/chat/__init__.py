"""Conversations as a program writes them, and the transcripts of answers, with their forms on the wire."""
