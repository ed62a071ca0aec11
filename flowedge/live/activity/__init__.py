"""Which activity of its pipeline a draft node reports while somebody watches."""
