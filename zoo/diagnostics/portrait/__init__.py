"""Portraits of encodings: what an encoding does, measured by passing tokens through it."""
