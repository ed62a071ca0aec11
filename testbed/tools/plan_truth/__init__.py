"""What a plan predicts beside what its pipeline does: agents with shares of cores and of a network."""
