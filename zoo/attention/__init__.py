"""Attention as data: the protocol that encodings are written in."""

from zoo.attention.call import Block, Lookup, Span, Terms, repeated, tabled
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens, precise, unrounded

__all__ = [
    "Block",
    "Dims",
    "Encoding",
    "Lookup",
    "Span",
    "Terms",
    "Tokens",
    "precise",
    "repeated",
    "tabled",
    "unrounded",
]
