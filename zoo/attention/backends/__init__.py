"""Interchangeable backends that compute an `AttentionCall`."""
