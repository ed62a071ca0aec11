"""Configs and decoder layers of dense families, without the model files of transformers."""
