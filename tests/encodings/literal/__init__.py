"""Literal references: encodings written as in their papers, pair by pair, to compare zoo with."""
