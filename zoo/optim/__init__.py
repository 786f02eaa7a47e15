"""Optimisers with their schedules, one per file."""
