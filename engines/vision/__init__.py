"""The vision tower: from pixels to merged visual tokens and deepstack features."""
