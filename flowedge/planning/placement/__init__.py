"""Plans: which devices of a fleet take part, with how many layers each, and who drafts."""
