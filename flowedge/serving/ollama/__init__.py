"""Ollama's endpoints, so that its clients connect: models, chat and generate."""

from flowedge.serving.ollama.router import router

__all__ = ["router"]
