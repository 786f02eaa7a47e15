"""Encodings in models of other libraries: torch, timm and transformers."""
