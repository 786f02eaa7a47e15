"""Synthetic tasks, whose samples are generated from the seed."""
