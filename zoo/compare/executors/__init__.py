"""Executors: what runs the cells of a comparison, one per file."""
