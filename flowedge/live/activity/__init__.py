"""What a draft node tells of its pipeline while somebody watches."""
