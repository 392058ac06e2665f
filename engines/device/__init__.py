"""The device under the model: what it reads, what it could reach, and where the weights lie."""
