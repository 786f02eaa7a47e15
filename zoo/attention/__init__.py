"""The protocol of encodings: tokens, attention calls and the hooks that rewrite them."""

from zoo.attention.call import (
    AttentionCall,
    BlockBias,
    Lookup,
    Span,
    bias_from_table,
    repeat_kv_heads,
)
from zoo.attention.encoding import POINT_AXES, Dims, Encoding
from zoo.attention.tokens import (
    Tokens,
    disable_autocast,
    has_variable_sizes,
    is_derived_again,
    is_transformed,
    upcast,
)

__all__ = [
    "POINT_AXES",
    "AttentionCall",
    "BlockBias",
    "Dims",
    "Encoding",
    "Lookup",
    "Span",
    "Tokens",
    "bias_from_table",
    "disable_autocast",
    "has_variable_sizes",
    "is_derived_again",
    "is_transformed",
    "repeat_kv_heads",
    "upcast",
]
