"""What OpenAI's and Ollama's endpoints share: bodies are read, answers are run, their work is counted."""
