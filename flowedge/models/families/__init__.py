"""What the config of each model family asks for. Torch is not imported: commands look families up first."""
