"""Data sources, one Lightning data module per file."""
