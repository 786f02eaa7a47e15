"""Options: the marks that annotate them, and how they are read, validated and described.

A class declares its options as keyword-only arguments with annotations. `signature` reads them,
`validation` checks values against them, `description` writes them for messages and `--help`.
"""

from zoo.options.marks import (
    COUNTED,
    Between,
    ByAxes,
    ChainSpec,
    Choice,
    Choices,
    Count,
    Differences,
    EncodingSpec,
    Matches,
)

__all__ = [
    "COUNTED",
    "Between",
    "ByAxes",
    "ChainSpec",
    "Choice",
    "Choices",
    "Count",
    "Differences",
    "EncodingSpec",
    "Matches",
]
