"""The version of zoo."""

__version__ = "0.3.0"
