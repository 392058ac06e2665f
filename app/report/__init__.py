"""Results to take away: a finished comparison as one HTML file, as JSON, as CSV, and as a trace."""

from app.report.data import Report
from app.report.files import KINDS, make

__all__ = ["KINDS", "Report", "make"]
