"""Optimizers with their schedules, one per file."""
