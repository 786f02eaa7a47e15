"""Attention as data: the protocol that encodings are written in."""

from zoo.attention.encoding import Dims, Encoding
from zoo.attention.pairs import Block, Lookup, Span, tabled
from zoo.attention.terms import Terms, repeated
from zoo.attention.tokens import Tokens, precise, unrounded

__all__ = [
    "Block", "Dims", "Encoding", "Lookup", "Span", "Terms", "Tokens", "precise", "repeated", "tabled", "unrounded",
]  # fmt: skip
