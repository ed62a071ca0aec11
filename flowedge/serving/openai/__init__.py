"""OpenAI's endpoints: chat completions, completions and responses."""

from flowedge.serving.openai.router import router

__all__ = ["router"]
