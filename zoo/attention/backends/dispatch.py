"""Choose the backend that computes an attention call, and run it.

`reference` defines the result, `chunked` computes it in parts, `sdpa` and `flex` use fused kernels.
The choice depends on the fields of the AttentionCall, never on the encoding.
"""

from __future__ import annotations

from torch import Tensor

from zoo.attention.backends.chunked import attend_chunked
from zoo.attention.backends.fused import attend_flex, attend_sdpa, fits_in_channels
from zoo.attention.backends.reference import attend_reference
from zoo.attention.call import AttentionCall, BlockBias
from zoo.attention.tokens import upcast
from zoo.errors import OptionError

BACKENDS = ("auto", "reference", "chunked", "sdpa", "flex")
FULL_ROW_FIELDS = ("transform_scores", "normalize", "extra_output")


def choose_backend(call: AttentionCall, device: str | None = None) -> tuple[str, str]:
    """The fastest interpreter that can compute `terms` on a type of device, and why."""
    whole = [name for name in FULL_ROW_FIELDS if getattr(call, name) is not None]
    if whole:
        return "chunked", f"{' and '.join(whole)} needs whole rows of scores"
    single = not any(isinstance(bias, BlockBias) and bias.index is None for bias in call.biases)
    if call.biases and single and (device or call.q.device.type) == "cuda":
        return "flex", "a bias for each pair, fused as an index function"
    if call.biases:
        return "chunked", "a bias for each pair"
    if _lone(call) and (device or call.q.device.type) == "cpu":
        return "chunked", "a query alone, which reads each key once"
    if _lone(call) and (call.low_rank_biases or call.q.shape[-1] != call.v.shape[-1]):
        return "chunked", "a query alone, for which no key is copied to be made wider"
    if call.low_rank_biases and not fits_in_channels(call):
        return "chunked", "a factor of large rank"
    if call.has_window:
        flexible = (device or call.q.device.type) == "cuda"
        return ("flex", "a window, as blocks") if flexible else ("sdpa", "a window, as a mask")
    return (
        "sdpa",
        "factors ride on q and k, no mask" if call.low_rank_biases else "nothing but q, k and v",
    )


def attend(call: AttentionCall, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Output [B, H, N, V] and mixed riders [B, H, N, E] of an attention call."""
    if backend not in BACKENDS:
        raise OptionError("backend", f"no backend {backend!r}; known are {', '.join(BACKENDS)}")
    able, reason = choose_backend(call)
    name = able if backend == "auto" else backend
    if name in ("sdpa", "flex") and any(
        getattr(call, field) is not None for field in FULL_ROW_FIELDS
    ):
        raise OptionError(
            "backend", f"{name} cannot compute this attention: {reason}; use reference or chunked"
        )
    out = {
        "reference": attend_reference,
        "chunked": attend_chunked,
        "sdpa": attend_sdpa,
        "flex": attend_flex,
    }[name](call)
    width = call.v.shape[-1]
    return out[..., :width], None if call.extra_values is None else out[..., width:]


def _lone(call: AttentionCall) -> bool:
    """Whether there is one query, and nothing to convert before its products with keys are precise."""
    return call.q.shape[2] == 1 and upcast(call.k) is call.k
