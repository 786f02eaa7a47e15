"""Choose the backend that computes an attention call, and run it.

`reference` defines the result, `chunked` computes it in parts, and `sdpa` and `flex` use fused
kernels. The choice depends on the fields of the AttentionCall, never on the encoding.
"""

from __future__ import annotations

from torch import Tensor

from zoo.attention.backends.chunked import attend_chunked
from zoo.attention.backends.fused import attend_flex, attend_sdpa, fits_in_channels
from zoo.attention.backends.reference import attend_reference
from zoo.attention.call import AttentionCall, BlockBias
from zoo.attention.tokens import is_transformed, upcast
from zoo.errors import OptionError
from zoo.suggestions import nearest

BACKENDS = ("auto", "reference", "chunked", "sdpa", "flex")
FULL_ROW_FIELDS = ("transform_scores", "normalize", "extra_output")


def choose_backend(call: AttentionCall, device: str | None = None) -> tuple[str, str]:
    """Choose the fastest backend that can compute a call.

    Args:
        call: The call.
        device: Type of the device; that of the call's tensors by default.

    Returns:
        The backend's name, and the reason for the choice.
    """
    if _is_empty(call):
        return "reference", "nothing to compute"
    fields = _full_row_fields(call)
    if fields:
        return "chunked", f"{' and '.join(fields)} needs whole rows of scores"

    # What concerns single pairs: FlexAttention needs an index function, has no dropout, and
    # cannot be transformed.
    kind = device or call.q.device.type
    suits_flex = kind == "cuda" and not call.dropout and not is_transformed(call.q, call.k, call.v)
    if call.biases or call.softcap is not None:
        has_block = any(isinstance(bias, BlockBias) and bias.index is None for bias in call.biases)
        reason = "a bias for each pair" if call.softcap is None else "a soft cap of scores"
        if suits_flex and not has_block:
            return "flex", f"{reason}, fused as an index function"
        return "chunked", reason

    # Sinks need a log-sum-exp: that of FlexAttention, or of SDPA's kernel of a CPU.
    if call.sinks is not None and (kind != "cpu" or call.dropout):
        return ("flex", "sinks") if suits_flex else ("chunked", "sinks without a log-sum-exp")

    # Everything else fits SDPA: q and k may be wider than v, with low-rank biases as channels.
    is_wider = bool(call.low_rank_biases) or call.q.shape[-1] != call.v.shape[-1]
    if is_wider and _is_single_query(call):
        return "chunked", "a single query, for which widening all keys would cost more"
    if call.low_rank_biases and not fits_in_channels(call):
        return "chunked", "a low-rank bias of large rank"
    if call.has_window:
        return ("flex", "a window, as blocks") if suits_flex else ("sdpa", "a window, as a mask")
    if call.low_rank_biases:
        return "sdpa", "low-rank biases as channels of q and k, no mask"
    if call.sinks is not None:
        return "sdpa", "sinks through the log-sum-exp"
    return "sdpa", "nothing but q, k and v"


def find_obstacle(call: AttentionCall, backend: str) -> str:
    """Return why a fused kernel cannot compute a call; empty if it can."""
    if backend in ("sdpa", "flex") and _full_row_fields(call):
        return choose_backend(call)[1]
    if backend == "sdpa" and call.softcap is not None:
        return "a soft cap of scores"
    return ""


def attend(call: AttentionCall, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Compute an attention call.

    Returns:
        The output [B, H, N, V], and the averages [B, H, N, E] of extra values, if there are any.

    Raises:
        OptionError: The backend is unknown, or cannot compute this call.
    """
    if backend not in BACKENDS:
        raise OptionError("backend", f"no backend {backend!r}; {nearest(str(backend), BACKENDS)}")
    name = choose_backend(call)[0] if backend == "auto" else backend
    if reason := find_obstacle(call, name):
        message = f"{name} cannot compute this attention: {reason}"
        raise OptionError("backend", f"{message}; use reference or chunked")
    if name == "flex" and call.dropout:
        message = "flex has no dropout of attention weights"
        raise OptionError("backend", f"{message}; use sdpa, chunked or reference")
    if name == "flex" and is_transformed(call.q, call.k, call.v):
        message = "torch.func and forward-mode derivatives cannot transform flex"
        raise OptionError("backend", f"{message}; use sdpa, chunked or reference")

    if _is_empty(call):
        name = "reference"
    functions = {
        "reference": attend_reference,
        "chunked": attend_chunked,
        "sdpa": attend_sdpa,
        "flex": attend_flex,
    }
    try:
        out = functions[name](call)
    except NotImplementedError as error:
        if name != "flex":
            raise
        message = "flex computes no gradients on this device; use another backend, or torch.no_grad"
        raise OptionError("backend", message) from error
    extra = None
    if call.extra_values is not None:
        # backends average extra values as further columns of v
        width = call.v.shape[-1]
        out, extra = out[..., :width], out[..., width:]
    return out if call.transform_output is None else call.transform_output(out), extra


def _is_empty(call: AttentionCall) -> bool:
    """Return whether there are no samples or no queries, which fused kernels refuse."""
    return 0 in (call.q.shape[0], call.q.shape[2])


def _full_row_fields(call: AttentionCall) -> list[str]:
    """List the fields of the call that need whole rows of scores."""
    return [name for name in FULL_ROW_FIELDS if getattr(call, name) is not None]


def _is_single_query(call: AttentionCall) -> bool:
    """Return whether there is one query, with keys that need no conversion to float32."""
    return call.q.shape[2] == 1 and upcast(call.k) is call.k
