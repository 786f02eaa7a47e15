"""Backends: interchangeable ways to compute an `AttentionCall`."""
