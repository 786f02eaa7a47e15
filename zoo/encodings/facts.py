"""The declared facts of an encoding, in words."""

from __future__ import annotations

from zoo.attention import Encoding


def declared(cls: type[Encoding] | Encoding) -> dict[str, str]:
    """{fact: what it says}, of a class or of one that was made with options."""
    own = cls if isinstance(cls, type) else type(cls)
    return {
        "module": "one for all layers" if cls.shared else "one per layer",
        "axes": " or ".join(map(str, cls.axes))
        + (f"; {cls.axes_because}" if cls.axes_because else ""),
        "coordinates": cls.coordinates,
        "relative": "yes: shifting all coordinates changes no score" if cls.relative else "no",
        "needs a causal mask": "yes" if cls.causal else "no",
        "needs a bias before it": "yes" if cls.absorbs else "no",
        "cached keys": "changed by later tokens"
        if own.settle is not Encoding.settle
        else "never touched again",
        "tokens without a place": "handled by the encoding" if cls.unplaced else "left alone",
    }
