"""The interpreters of an attention call: `dense` defines it, `chunked` takes it in parts, `sdpa` and `flex` compute it fused.

Which one runs is read off the fields of Terms, never off an encoding.
"""

from __future__ import annotations

from torch import Tensor

from zoo.attention.backends.chunked import chunked
from zoo.attention.backends.fused import flex, sdpa, slim
from zoo.attention.backends.reference import dense
from zoo.attention.call import Block, Terms
from zoo.attention.tokens import precise
from zoo.errors import Invalid

BACKENDS = ("auto", "dense", "chunked", "sdpa", "flex")
ROWS = ("rescore", "weigh", "readout")


def choose(terms: Terms, device: str | None = None) -> tuple[str, str]:
    """The fastest interpreter that can compute `terms` on a type of device, and why."""
    whole = [name for name in ROWS if getattr(terms, name) is not None]
    if whole:
        return "chunked", f"{' and '.join(whole)} needs whole rows of scores"
    single = not any(isinstance(bias, Block) and bias.index is None for bias in terms.biases)
    if terms.biases and single and (device or terms.q.device.type) == "cuda":
        return "flex", "a bias for each pair, fused as an index function"
    if terms.biases:
        return "chunked", "a bias for each pair"
    if _lone(terms) and (device or terms.q.device.type) == "cpu":
        return "chunked", "a query alone, which reads each key once"
    if _lone(terms) and (terms.factors or terms.q.shape[-1] != terms.v.shape[-1]):
        return "chunked", "a query alone, for which no key is copied to be made wider"
    if terms.factors and not slim(terms):
        return "chunked", "a factor of large rank"
    if terms.windowed:
        flexible = (device or terms.q.device.type) == "cuda"
        return ("flex", "a window, as blocks") if flexible else ("sdpa", "a window, as a mask")
    return "sdpa", "factors ride on q and k, no mask" if terms.factors else "nothing but q, k and v"


def attend(terms: Terms, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Output [B, H, N, V] and mixed riders [B, H, N, E] of an attention call."""
    if backend not in BACKENDS:
        raise Invalid("backend", f"no backend {backend!r}; known are {', '.join(BACKENDS)}")
    able, reason = choose(terms)
    name = able if backend == "auto" else backend
    if name in ("sdpa", "flex") and any(getattr(terms, field) is not None for field in ROWS):
        raise Invalid(
            "backend", f"{name} cannot compute this attention: {reason}; use dense or chunked"
        )
    out = {"dense": dense, "chunked": chunked, "sdpa": sdpa, "flex": flex}[name](terms)
    width = terms.v.shape[-1]
    return out[..., :width], None if terms.riders is None else out[..., width:]


def _lone(terms: Terms) -> bool:
    """Whether there is one query, and nothing to convert before its products with keys are precise."""
    return terms.q.shape[2] == 1 and precise(terms.k) is terms.k
