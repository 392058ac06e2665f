"""One file a panel: its components, and the functions that fill them."""
