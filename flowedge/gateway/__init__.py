"""The HTTP gateway in front of pipelines: its process, HTTP itself, the endpoints, metrics."""
