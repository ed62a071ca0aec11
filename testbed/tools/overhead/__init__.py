"""What the machinery costs apart from models."""
