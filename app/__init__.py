"""The page: a Gradio interface over engines/. It never touches torch or transformers itself."""
