"""Layers that mix tokens by a state in place of attention: one file each."""
