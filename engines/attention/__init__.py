"""What the language model's tokens may attend to."""
