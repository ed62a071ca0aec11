"""The weight cache on disk: objects named by their SHA-256, within one size limit."""
