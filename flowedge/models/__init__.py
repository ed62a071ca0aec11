"""Language models: their files, their layers, quantised weights, and checks against a reference."""
