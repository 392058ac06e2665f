"""Reuse of work from earlier runs, bounded by bytes and counted."""
