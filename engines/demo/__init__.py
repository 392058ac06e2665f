"""The bundled demo model: scene generator, tokenizer, trainer and held-out evaluation."""
