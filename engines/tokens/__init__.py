"""One numbering for image patches, prompt positions, KV rows and heatmap cells."""
