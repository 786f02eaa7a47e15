"""Attention as data: the protocol that encodings are written in."""

from zoo.attention.encoding import Dims, Encoding
from zoo.attention.terms import Lookup, Terms, repeated
from zoo.attention.tokens import Tokens, precise, unrounded

__all__ = ["Dims", "Encoding", "Lookup", "Terms", "Tokens", "precise", "repeated", "unrounded"]
