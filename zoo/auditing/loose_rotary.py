"""A rotary layer alone: a module or a function that makes angles, or turns queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from zoo.auditing.audit_report import LawResult
from zoo.auditing.rotations import (
    RotaryFault,
    check_call,
    describe_channels,
    join_angles,
    list_widths,
)
from zoo.auditing.subject import REFUSALS
from zoo.errors import OptionError
from zoo.integrations.own_rotation import OwnRotation, fit_rotation, to_pairs
from zoo.integrations.structure import RotaryModule, describe_angles

COUNT = 24  # tokens by which a layer is understood


@dataclass(frozen=True)
class LooseRotary:
    """A rotary layer outside a model, called as a rotary module of a model is.

    Attributes:
        rotary: Its name and what it returns.
        table: Returns cos + i sin [P, channels] of positions [P].
        kind: How it is called, for the report.
        layer_type: The type of layers; a layer alone has none.
        turning: How it turns queries and keys, if it does.
    """

    rotary: RotaryModule
    table: Callable[[Tensor, torch.dtype], Tensor]
    kind: str
    layer_type: str | None = None
    turning: tuple[OwnRotation | None, OwnRotation | None] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def compute(
        self, model: Any, positions: Tensor, dtype: torch.dtype | None = torch.float32
    ) -> Tensor:
        """Return cos + i sin [P, channels] as complex128 of positions [P]."""
        return self.table(positions, dtype or torch.float32)


def understand(layer: Any, config: Any) -> LooseRotary:
    """Find how a rotary layer is called, by calling it.

    Args:
        layer: A module or a function: of states and positions, of positions, or of queries, keys
            and positions.
        config: The configuration, which has the width of a head.

    Raises:
        OptionError: It answers none of these calls with a rotation.
    """
    name = type(layer).__name__ if isinstance(layer, nn.Module) else layer.__name__
    width = find_width(config)
    refusals = []
    calls: tuple[tuple[str, Callable[[Tensor, torch.dtype], Any]], ...] = (
        (
            "states and positions",
            lambda p, dtype: layer(torch.ones(1, 1, width, dtype=dtype), p[None]),
        ),
        ("positions [B, N]", lambda p, dtype: layer(p[None])),
        ("positions [N]", lambda p, dtype: layer(p)),
    )
    for kind, call in calls:
        try:
            described = describe_angles(call(torch.arange(COUNT), torch.float32))
        except REFUSALS as refusal:
            refusals.append(f"{kind}: {type(refusal).__name__}")
            continue
        if described is None:
            refusals.append(f"{kind}: no cos and sin, and no complex numbers of modulus 1")
            continue
        rotary = RotaryModule(name, described[0], (described[1],))

        def table(
            positions: Tensor, dtype: torch.dtype, call: Any = call, kind: str = described[0]
        ) -> Tensor:
            return join_angles(call(positions, dtype), kind)

        return LooseRotary(rotary, table, kind)
    heads = torch.randn(1, 2, COUNT, width, generator=torch.Generator("cpu").manual_seed(0))
    for kind, apply in _list_turns(layer):
        try:
            outputs = apply(heads, torch.arange(COUNT))
            rotations = tuple(
                fit_rotation(off, on, list_widths(heads))
                for off, on in zip(apply(heads, torch.zeros(COUNT).long()), outputs, strict=True)
            )
        except (*REFUSALS, OptionError) as refusal:
            refusals.append(f"{kind}: {type(refusal).__name__}")
            continue
        rotation = next((one for one in rotations if one is not None), None)
        if rotation is None:
            refusals.append(f"{kind}: nothing turns")
            continue
        which = rotations.index(rotation)
        rotary = RotaryModule(name, "complex", (rotation.channels.width,))

        def turn(
            positions: Tensor,
            dtype: torch.dtype,
            apply: Any = apply,
            which: int = which,
            channels: Any = rotation.channels,
        ) -> Tensor:
            # A pair (1, 0) of each turning pair of channels shows its angle.
            ones = torch.ones(1, 1, len(positions), width, dtype=dtype)
            pairs = [to_pairs(one, channels)[0, 0] for one in (ones, apply(ones, positions)[which])]
            return pairs[1] / pairs[0]

        both = rotations if len(rotations) == 2 else (rotations[0], rotations[0])
        return LooseRotary(rotary, turn, kind, turning=(both[0], both[1]))
    problem = "it answers no call with a rotation"
    raise OptionError("layer", f"{name}: {problem}: {'; '.join(refusals)}")


def _list_turns(layer: Any) -> list[tuple[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]]:
    """List calls that turn heads [B, H, N, K] at positions [N]."""
    return [
        ("queries, keys and positions [B, N]", lambda x, p: tuple(layer(x, x, p[None]))),
        ("queries, keys and positions [N]", lambda x, p: tuple(layer(x, x, p))),
        ("queries and positions [B, N]", lambda x, p: (layer(x, p[None]),)),
        ("queries and positions [N]", lambda x, p: (layer(x, p),)),
    ]


def find_width(config: Any) -> int:
    """Return the number of channels of a head.

    Raises:
        OptionError: The configuration does not say.
    """
    width = getattr(config, "head_dim", None)
    if isinstance(width, int):
        return width
    hidden, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    if not (isinstance(hidden, int) and isinstance(heads, int)):
        raise OptionError("config", "it has neither head_dim nor hidden_size and heads")
    return hidden // heads


def ask_rotary_layer(layer: Any, config: Any) -> tuple[LawResult, tuple[str, ...]]:
    """Compare a rotary layer with a configuration at all positions.

    Args:
        layer: A module or a function.
        config: A configuration of transformers, or an object with its entries.

    Returns:
        The result, and notes.

    Raises:
        OptionError: The layer answers no call with a rotation, or the configuration has no width.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    loose = understand(layer, text)
    notes = [f"{loose.rotary.path} was called with {loose.kind}"]
    error, bound, fault = 0.0, 1.0, None
    if loose.turning is not None:
        queries, keys = (None if one is None else one.channels for one in loose.turning)
        layout = f"queries {describe_channels(queries)}, keys {describe_channels(keys)}"
        notes.append(layout)
        if queries != keys:
            explanation = "keys_not_turned" if None in (queries, keys) else "layout"
            cause = f"queries and keys turn differently: {layout}"
            fault = RotaryFault(loose.rotary.path, 1.0, 0.0, None, cause, explanation)
            error, bound = 1.0, 0.0
    if fault is None:
        error, bound, fault = check_call(loose, None, text, (torch.float32,), None, notes)
    statement = "the layer turns what the configuration says"
    if fault is None:
        result = LawResult(
            law="rotary", statement=statement, status="kept", error=error, bound=bound
        )
    else:
        result = LawResult(
            law="rotary",
            statement=statement,
            status="broken",
            error=error,
            bound=bound,
            since=fault.since,
            module=fault.path,
            cause=fault.cause,
            explanation=fault.explanation,
        )
    return result, tuple(dict.fromkeys(notes))
