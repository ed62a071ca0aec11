"""What a draft node tells of its pipeline to who watches it."""
