"""Which routed experts each token uses, and how much each expert was used."""
