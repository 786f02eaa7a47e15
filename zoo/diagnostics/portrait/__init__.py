"""Portraits of encodings, measured by passing tokens through them."""
