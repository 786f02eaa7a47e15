"""Prove that a model computes what it did when its attention is computed by zoo, law by law.

Each call of the attention interface is compared on its own: in the second run it hands on what it
returned in the first, so that all layers have the same input, and rounding does not add up. Queries
are enlarged until scores matter, since a model with fresh weights hides what its positions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from zoo.integrations.attention_windows import narrowed, read_chunk, read_window
from zoo.integrations.interface_calls import InterfaceCall, watch_interface
from zoo.integrations.structure import accepts

SAFETY = 4  # a bound is this many times the rounding that was measured
ANGLES = 2.0**-24  # rounding of an angle in float32, for each position
SPREAD = 3.0  # standard deviation of the scores that a comparison aims at
PADDING = 5
PARTS = (5, 3, 1)  # sizes of the first parts of a text that a cache receives
NARROW = 6  # tokens of a window that a short text exceeds
PAST_WINDOWS = ("past the window", "past the window, with a cache")  # laws with narrow windows


@dataclass(frozen=True)
class EqualityLaw:
    """A way to run a model.

    Attributes:
        name: Its name in messages.
        run: Runs the model.
        start: The first token whose output counts; padding has none.
        stop: The token after the last one.
    """

    name: str
    run: Callable[[nn.Module], Any]
    start: int = 0
    stop: int | None = None


@dataclass
class AttentionRecord:
    """The outputs [B, N, H V] of the attention in one law.

    Attributes:
        outputs: The output of each call of the interface.
        roundings: What rounding of its queries, keys and values changes in each output.
        modules: The module that made each call.
        results: What the interface returned.
        limited: The modules that had a mask which hides a token a query could see by causality, or
            by nothing.
    """

    outputs: list[Tensor] = field(default_factory=list)
    roundings: list[float] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    limited: set[nn.Module] = field(default_factory=set)


def list_laws(
    model: PreTrainedModel, inputs: Mapping[str, Any], is_causal: bool, *, has_axes: bool = False
) -> list[EqualityLaw]:
    """List the laws of a model that reads text, or the only one of a model that reads images.

    Args:
        model: The model.
        inputs: Its arguments for one pass.
        is_causal: Whether it has a causal mask.
        has_axes: Whether tokens have positions of time, height and width.
    """
    laws = [EqualityLaw("one pass", lambda model: model(**inputs))]
    if "input_ids" not in inputs:
        return laws
    ids = inputs["input_ids"]
    ones = torch.ones_like(ids)
    count = ids.shape[1]
    plain = {"use_cache": False} if accepts(model, "use_cache") else {}

    def pad(model: nn.Module, *, is_left: bool) -> Any:
        filler = torch.zeros_like(ids[:, :1]).expand(-1, PADDING)
        parts = [(filler, torch.zeros_like(filler)), (ids, ones)]
        if not is_left:
            parts.reverse()
        padded, mask = (torch.cat(group, 1) for group in zip(*parts, strict=True))
        given = {"attention_mask": mask, **plain}
        if is_left and accepts(model, "position_ids"):
            given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        return model(input_ids=padded, **given)

    if has_axes:
        steps = torch.arange(count, device=ids.device)
        axes = torch.stack([steps // 4, steps // 2, steps % 5])[:, None]
        laws.append(
            EqualityLaw("three axes", lambda m: m(input_ids=ids, position_ids=axes, **plain))
        )
    laws.append(EqualityLaw("padding on the right", lambda m: pad(m, is_left=False), 0, count))
    config = model.config.get_text_config()
    past_window = []
    if read_window(config) or read_chunk(config):
        ways: list[Callable[[nn.Module], Any]] = [lambda m: m(input_ids=ids, **plain)]
        if is_causal and plain:
            ways.append(lambda m: _decode(m, ids))
        past_window = [
            EqualityLaw(name, partial(_run_narrowed, run=run))
            for name, run in zip(PAST_WINDOWS, ways, strict=False)
        ]
    if not is_causal:
        return [*laws, *past_window]
    laws.append(EqualityLaw("padding on the left", lambda m: pad(m, is_left=True), PADDING))
    if accepts(model, "position_ids"):
        half = count // 2
        places = torch.cat([torch.arange(half), torch.arange(count - half)]).to(ids.device)[None]
        laws.append(
            EqualityLaw("packed texts", lambda m: m(input_ids=ids, position_ids=places, **plain))
        )
    if plain:
        laws.append(EqualityLaw("a cache in parts", lambda model: _decode(model, ids)))
    return [*laws, *past_window]


def _run_narrowed(model: nn.Module, run: Callable[[nn.Module], Any]) -> None:
    """Run a model with a narrow window."""
    with narrowed(model, NARROW):
        run(model)


def _decode(model: nn.Module, ids: Tensor) -> None:
    """Run token ids in parts, with the cache that the model returns."""
    cache: dict[str, Any] = {}
    rest = ids.shape[1] - sum(PARTS)
    for part in ids.split((*PARTS, rest), dim=1):
        output = model(input_ids=part, use_cache=True, **cache)
        # Former names of the argument answer, although no key has them.
        cache = {name: output[name] for name in output.keys() if isinstance(output[name], Cache)}  # noqa: SIM118
        if not cache:
            raise TypeError("the model returns no cache")


class Prover:
    """Record a model's attention in each law, and compare it.

    Args:
        model: The model.
        attentions: The modules that compute an attention over tokens.
        is_causal: Whether they have a causal mask.
    """

    def __init__(
        self, model: nn.Module, attentions: Sequence[nn.Module], *, is_causal: bool
    ) -> None:
        self.model, self.attentions, self.is_causal = model, {*attentions}, is_causal
        self.numbers = {module: number for number, module in enumerate(attentions)}
        self.gains: dict[nn.Module, float] = {}
        self.layer = 0  # the number of the attention that was called last

    def record(self, law: EqualityLaw, replay: Sequence[Any] = ()) -> AttentionRecord:
        """Run a law.

        Args:
            law: The law.
            replay: What the interface hands on instead of what it computed.
        """
        record = AttentionRecord()

        def handle(call: InterfaceCall) -> Any:
            if call.module not in self.attentions:
                return call.compute()
            self.layer = self.numbers[call.module]
            gain = self.gains.setdefault(call.module, _find_gain(call))
            q = call.q * gain
            result = call.compute(q)
            output = result[0].flatten(2)[:, law.start : law.stop]
            record.outputs.append(output)
            if not replay:
                rounded = call.compute(*(_round_otherwise(one) for one in (q, call.k, call.v)))
                rounded = rounded[0].flatten(2)[:, law.start : law.stop]
                record.roundings.append(measure_difference(output, rounded))
            record.modules.append(call.module)
            record.results.append(result)
            if not replay and _is_limited(call, is_causal=self.is_causal):
                record.limited.add(call.module)
            return replay[len(record.outputs) - 1] if replay else result

        with watch_interface(self.model, handle):
            law.run(self.model)
        return record

    def find_difference(
        self, own: AttentionRecord, found: AttentionRecord
    ) -> tuple[int, float, float] | None:
        """Return the first layer whose outputs differ by more than rounding.

        Returns:
            Its number, the difference, and the largest one that rounding explains.
        """
        if len(own.outputs) != len(found.outputs):
            return self.numbers[own.modules[0]], float("nan"), 0.0
        calls = zip(own.modules, own.outputs, own.roundings, found.outputs, strict=True)
        for module, right, rounding, other in calls:
            error = measure_difference(right, other)
            bound = SAFETY * max(rounding, torch.finfo(right.dtype).eps)
            # A comparison with NaN is false, which counts as a difference.
            if not error <= bound:
                return self.numbers[module], error, bound
        return None


def _is_limited(call: InterfaceCall, *, is_causal: bool) -> bool:
    """Return whether the mask of a pass hides a pair that causality shows."""
    if call.mask is None or call.mask.dim() != 4 or call.q.shape[2] != call.k.shape[2]:
        return False
    # a mask of numbers adds 0 to visible scores and the smallest number to others
    visible = call.mask if call.mask.dtype == torch.bool else call.mask > -1
    shown = torch.ones_like(visible[0, 0])
    return bool((shown.tril() if is_causal else shown)[~visible.all(1).all(0)].any())


def measure_difference(own: Tensor, found: Tensor) -> float:
    """Return the largest relative difference of tokens of outputs [B, N, D], or the median.

    The median counts in half precision.
    """
    is_full = own.dtype in (torch.float32, torch.float64)
    own, found = own.double(), found.double()
    scale = own.norm(dim=-1).mean().clamp(min=1e-30)
    errors = (found - own).norm(dim=-1) / scale
    return float(errors.max() if is_full else errors.median())


def _round_otherwise(heads: Tensor) -> Tensor:
    """Return queries, keys or values [B, H, N, K] with the error of a rotation at each number.

    It is that of the dtype, and of the angles of tokens, which are products of positions.
    """
    unit = torch.finfo(heads.dtype).eps + ANGLES * heads.shape[2]
    draw = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(0, 2, heads.shape, generator=draw, device="cpu") * 2 - 1
    size = heads.float().square().mean(-1, keepdim=True).sqrt()
    return heads + (unit * size * signs.to(heads.device)).to(heads.dtype)


def _find_gain(call: InterfaceCall) -> float:
    """Return by how much queries must grow until scores of a call differ enough."""
    q, k = call.q.float(), call.k.float()
    scale = call.options.get("scaling") or q.shape[-1] ** -0.5
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    spread = float((q @ k.mT * scale).std()) if q.shape[2] * k.shape[2] > 1 else SPREAD
    return max(1.0, SPREAD / max(spread, 1e-12))
