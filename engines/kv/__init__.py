"""The KV cache in blocks: fewer bits, fewer tokens."""
