"""RoPE by three positions of a token (M-RoPE; Wang et al. 2024, arXiv:2409.12191)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from zoo.attention import Dims
from zoo.encodings.common.scaling import Scaling
from zoo.encodings.rope import BASE, RoPE
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

AXES = 3  # time, height and width


@register
class MRoPE(RoPE):
    """pairs (2i, 2i+1) of q and k rotate by p_a(i) w_i, a(i) = t, h or w, w_i = base^(-2i/K')

    A token of text has t = h = w, where this is rope; a patch of a picture has its frame, row and
    column. `sections` are the numbers of pairs that rotate by t, h and w. With `layout` blocks the
    first pairs rotate by t, then those of h, then those of w (Qwen2-VL). Interleaved, a(i) = h for
    the first pairs with i mod 3 = 1, w for the first with i mod 3 = 2, and t elsewhere, so that
    each axis has fast and slow pairs (Qwen3-VL). By default 5/16 of the pairs each rotate by h and
    w interleaved, 3/8 in blocks, as published. Channels past K' = rotary_fraction K stay unchanged.

    Args:
        sections: Numbers of pairs that rotate by t, h and w.
        layout: Whether pairs of the axes alternate or follow each other.
        base: The frequencies are base^(-2i/K').
        rotary_fraction: Share of the channels that rotate.
        scaling: Rule for texts longer than in training.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    axes = (AXES,)
    point_axes = ()
    axes_reason = (
        "it rotates by the time, height and width of a token, which no data source of texts has; "
        "rope is its form for text, rope_axial for images"
    )

    def __init__(
        self,
        dims: Dims,
        *,
        sections: tuple[Annotated[int, Between(0)], ...] | None = None,
        layout: Literal["interleaved", "blocks"] = "interleaved",
        base: Annotated[float, Between(1)] = BASE,
        rotary_fraction: Annotated[float, Between(0, 1)] = 1.0,
        scaling: Scaling | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(
            dims,
            base=base,
            rotary_fraction=rotary_fraction,
            scaling=scaling,
            turn_values=turn_values,
        )
        pairs = self.width // 2
        chosen = _choose_sections(layout, pairs) if sections is None else tuple(sections)
        if len(chosen) != AXES:
            message = f"sections {[*chosen]} are not three numbers of pairs, of t, h and w"
            raise OptionError("sections", message)
        if sum(chosen) != pairs:
            message = f"sections {[*chosen]} have the sum {sum(chosen)}"
            raise OptionError("sections", f"{message}, not {pairs}, the number of rotated pairs")
        self.sections, self.layout = chosen, layout
        counts = Counter(_find_axis(i, chosen, layout) for i in range(pairs))
        if (interleaved := [counts[axis] for axis in range(AXES)]) != [*chosen]:
            message = (
                f"interleaved, sections {[*chosen]} would rotate {interleaved} of {pairs} pairs"
            )
            hint = "choose at most a third for h and w each, or layout: blocks"
            raise OptionError("sections", f"{message}; {hint}")

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def wave_vectors(self, like: Tensor) -> Tensor:
        pairs = torch.arange(self.width // 2, device=like.device)
        axes = _find_axis(pairs, self.sections, self.layout)
        # Products with 0 add exactly nothing, so that equal positions give the angles of rope.
        is_own = axes == torch.arange(AXES, device=like.device)[:, None]  # [3, K'/2]
        return (super().wave_vectors(like)[0] * is_own)[:, None]


def _choose_sections(layout: str, pairs: int) -> tuple[int, ...]:
    """Return the default sections: the published shares of t, h and w."""
    share, most = (5 / 16, pairs // AXES) if layout == "interleaved" else (3 / 8, pairs // 2)
    count = min(round(share * pairs), most)
    return pairs - 2 * count, count, count


def _find_axis(i: Any, sections: Sequence[int], layout: str) -> Any:
    """Return the axis of pair i, or of each of a tensor of pairs: 0, 1 or 2 for t, h or w."""
    t, h, w = sections
    if layout == "blocks":
        return (i >= t) * 1 + (i >= t + h) * 1
    return (i % AXES == 1) * (i < AXES * h) * 1 + (i % AXES == 2) * (i < AXES * w) * 2
