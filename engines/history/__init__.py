"""What was measured before: finished comparisons and votes, kept in one SQLite file."""

from engines.history.store import Entry, HistoryStore, Summary, default_path

__all__ = ["Entry", "HistoryStore", "Summary", "default_path"]
