"""What is checked before anything is started: names of models, the split, the room for a prompt. No torch."""
