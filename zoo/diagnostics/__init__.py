"""Measurements and pictures of attention and encodings, made through the protocol."""
