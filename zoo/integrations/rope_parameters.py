"""The rotary entries of a configuration of transformers, read and written as options of `rope`.

Every entry is read, or refused by name: one that nobody reads may change what a model computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.errors import OptionError

LENGTH_ENTRY = "original_max_position_embeddings"
ENTRIES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    # Its L is max_position_embeddings of the configuration.
    "dynamic": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original": LENGTH_ENTRY,
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor",
        "original": LENGTH_ENTRY,
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "truncate",
        "attention_factor": "attention_factor",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
    },
    "longrope": {
        "factor": "factor",
        "original": LENGTH_ENTRY,
        "short_factor": "short_factor",
        "long_factor": "long_factor",
        "attention_factor": "attention_factor",
    },
    "proportional": {"factor": "factor", "fraction": "partial_rotary_factor"},
}
"""{kind: {option of scaling: entry}}. ntk is no kind, but a plain rotation with another base."""
FORMER = {"su": "longrope"}
"""Former names of kinds."""
COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
"""Entries of every kind."""
OF_ATTENTION = ("llama_4_scaling_beta", "max_position_embeddings")
"""Entries that Ministral 3 keeps here: its attention scales queries by them, not its rotation."""
DEFAULT_BASE = 10000.0
FIXED_LENGTH = ("dynamic", "longrope")
"""The kinds whose frequencies follow the length of the text."""


def read_kind(entries: Mapping[str, Any]) -> str:
    """Return the kind of a rotation; "default" if the entries are silent."""
    kind = str(entries.get("rope_type") or entries.get("type") or "default")
    return FORMER.get(kind, kind)


def read_rope_parameters(entries: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Read `rope_parameters`, or the older `rope_scaling`.

    The fraction of channels that rotate is read for `proportional` only: families differ in whether
    they follow it.

    Args:
        entries: The entries, with `rope_theta` among them.
        length: `max_position_embeddings` of the configuration.

    Returns:
        The options `base` and, unless the rotation is plain, `scaling` of the encoding `rope`.

    Raises:
        OptionError: `rope` has no such rule, or the rule has no such entry.
    """
    kind = read_kind(entries)
    if kind not in ENTRIES:
        raise OptionError("rope_type", f"rope_type is {kind}; rope has {', '.join(ENTRIES)}")
    given = {key: value for key, value in entries.items() if value is not None}
    known = ENTRIES[kind]
    for key, value in given.items():
        if key not in known.values() and key not in COMMON:
            raise OptionError(key, f"{key}={value} is no entry of rope_type {kind}")
    options: dict[str, Any] = {"base": float(given.get("rope_theta", DEFAULT_BASE))}
    if kind == "default":
        return options

    found = {option: given[key] for option, key in known.items() if key in given}
    _fill_in(kind, found, length)
    return {**options, "scaling": {"rule": kind, **found}}


def _fill_in(kind: str, found: dict[str, Any], length: int) -> None:
    """Add what transformers computes where a configuration is silent, and drop what it ignores."""
    if kind == "proportional":
        found.setdefault("fraction", 1.0)
    if kind == "dynamic":
        found["original"] = length
    if LENGTH_ENTRY in ENTRIES[kind].values():
        found["original"] = int(found.get("original", length))
    if kind in ("yarn", "longrope"):
        found.setdefault("factor", length / found["original"])
    # transformers takes 0 for no entry.
    for key in ("beta_fast", "beta_slow"):
        if not found.get(key, True):
            del found[key]
    if not (found.get("mscale") and found.get("mscale_all_dim")):
        found.pop("mscale", None)
        found.pop("mscale_all_dim", None)


def write_rope_parameters(
    base: float, rule: str = "default", options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `rope_parameters` of a configuration.

    Args:
        base: Base of the frequencies.
        rule: A rule of scaling that transformers has.
        options: Its options, with those that depend on the model; None leaves an entry out.
    """
    given = options or {}
    entries = {
        key: given[option] for option, key in ENTRIES[rule].items() if given.get(option) is not None
    }
    return {"rope_type": rule, "rope_theta": base, **entries}
