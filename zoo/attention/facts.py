"""The declared facts of an encoding, in words."""

from __future__ import annotations

from zoo.attention import Encoding


def describe_facts(cls: type[Encoding] | Encoding) -> dict[str, str]:
    """{fact: what it says}, of a class or of one that was made with options."""
    own = cls if isinstance(cls, type) else type(cls)
    return {
        "module": "one for all layers" if cls.shared else "one per layer",
        "axes": " or ".join(map(str, cls.axes))
        + (f"; {cls.axes_reason}" if cls.axes_reason else ""),
        "coordinates": cls.coordinates,
        "shift_invariant": "yes: shifting all coordinates changes no score"
        if cls.shift_invariant
        else "no",
        "needs a causal mask": "yes" if cls.causal_only else "no",
        "needs a bias before it": "yes" if cls.consumes_biases else "no",
        "cached keys": "changed by later tokens"
        if own.update_cached_keys is not Encoding.update_cached_keys
        else "never touched again",
        "tokens without a place": "handled by the encoding"
        if cls.handles_special_tokens
        else "left alone",
    }
