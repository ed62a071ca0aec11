"""What stands in a model's files: config.json and its checks, the families, tensors in safetensors files."""
