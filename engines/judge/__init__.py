"""Judging a compressed model on a set of questions: drift, canary, alignment, and robustness to poor pictures."""
