"""Describe the declared facts of an encoding in words."""

from __future__ import annotations

from zoo.attention.encoding import Encoding


def describe_facts(encoding: type[Encoding] | Encoding) -> dict[str, str]:
    """Return {fact: description} of an encoding or of its class."""
    cls = encoding if isinstance(encoding, type) else type(encoding)
    axes = " or ".join(map(str, encoding.axes))
    final_keys = cls.update_cached_keys is Encoding.update_cached_keys
    shift_invariant = "yes: shifting all coordinates changes no score"
    return {
        "modules": "one for all layers" if encoding.shared else "one per layer",
        "axes": f"{axes}; {encoding.axes_reason}" if encoding.axes_reason else axes,
        "coordinates": encoding.coordinates,
        "shift_invariant": shift_invariant if encoding.shift_invariant else "no",
        "causal_only": _yes_or_no(encoding.causal_only),
        "needs_full_sequence": _yes_or_no(encoding.needs_full_sequence),
        "consumes_biases": _yes_or_no(encoding.consumes_biases),
        "cached_keys": "never changed" if final_keys else "changed by later tokens",
        "special_tokens": "handled by the encoding"
        if encoding.handles_special_tokens
        else "left alone",
    }


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
