"""Attention as data: the protocol that encodings are written in."""

from zoo.attention.call import AttentionCall, Block, Lookup, Span, repeated, tabled
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens, precise, unrounded

__all__ = [
    "AttentionCall",
    "Block",
    "Dims",
    "Encoding",
    "Lookup",
    "Span",
    "Tokens",
    "precise",
    "repeated",
    "tabled",
    "unrounded",
]
