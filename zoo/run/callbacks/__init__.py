"""Callbacks of a training."""
