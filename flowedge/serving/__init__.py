"""The HTTP gateway: OpenAI's and Ollama's endpoints and a page to watch it on, in front of pipelines."""
