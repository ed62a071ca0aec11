"""What a stage computes together: the segments that wait, of which sessions, and how many are worth it."""
