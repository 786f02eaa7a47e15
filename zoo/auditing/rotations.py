"""The tables that each rotary module of a model computes, against what its configuration says."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zoo.auditing.model_subjects import replace_model
from zoo.auditing.score_calls import ScoreCall, find_scoring, holding, keeping, record_scores
from zoo.auditing.subject import AuditSubject, NotAskedError
from zoo.errors import OptionError
from zoo.integrations.equipment import TurnedChannels
from zoo.integrations.own_rotation import (
    OF_AXES,
    PLACES,
    OwnRotation,
    are_same_frequencies,
    compute_rope,
    fit_rotation,
    keep_rotary,
    to_pairs,
    unwrap_angles,
)
from zoo.integrations.rope_parameters import (
    FIXED_LENGTH,
    OF_ATTENTION,
    read_kind,
    read_rope_parameters,
)
from zoo.integrations.structure import Observer, RotaryModule, neutralized

POSITIONS = 2**17  # positions whose angles are compared, or more if the model has more
COUNT = 24  # tokens of the text in which the rotary modules are found
FAR = (*PLACES, *(62 * 2**power for power in range(9)))
"""Positions by which frequencies are measured, to 8 digits."""
OUTPUT = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Errors of cos and sin by the dtype of the output."""
ANGLE = 16 * 2.0**-23  # relative error of an angle in float32
BASE_ENTRIES = ("rope_theta", "rope_base", "rotary_emb_base", "rotary_base")
"""Names of the base in configurations."""
BASES = (1e4, 1e5, 1.6e5, 2.5e5, 5e5, 1e6, 5e6, 1e7)
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class AnglesCall(Protocol):
    """A rotary module with the arguments of a call, or a rotary layer alone."""

    @property
    def rotary(self) -> RotaryModule:
        """The module."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Its arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Its keyword arguments."""

    @property
    def layer_type(self) -> str | None:
        """The type of layers that it was called for, if it was named."""

    def compute(
        self, model: Any, positions: Tensor, dtype: torch.dtype | None = torch.float32
    ) -> Tensor:
        """Return cos + i sin [P, channels] as complex128 of positions [P]."""


@dataclass(frozen=True)
class RotaryCall:
    """A call of a rotary module.

    Attributes:
        rotary: The module.
        args: Its arguments.
        kwargs: Its keyword arguments.
        layer_type: The type of layers that it was called for, if it was named.
    """

    rotary: RotaryModule
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    layer_type: str | None

    @torch.no_grad()
    def compute(
        self, model: nn.Module, positions: Tensor, dtype: torch.dtype | None = torch.float32
    ) -> Tensor:
        """Return cos + i sin [P, channels] as complex128 of positions [P], or of axes [A, P].

        Args:
            model: The model, or another one with the same module.
            positions: The positions.
            dtype: Dtype of the states that the module receives; None for their own.
        """

        def place(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if value.is_floating_point():
                states = value[:1, :1] if value.dim() == 3 else value[:1]
                return states if dtype is None else states.to(dtype)
            axes = positions if positions.dim() == 2 else positions[None]
            axes = axes.to(value.device)
            if value.dim() == 1:
                return axes[0]
            return axes.expand(value.shape[0], -1)[:, None] if value.dim() == 3 else axes[:1]

        module = model.get_submodule(self.rotary.path)
        with keep_rotary(module):
            output = module(
                *map(place, self.args), **{name: place(one) for name, one in self.kwargs.items()}
            )
        return join_angles(output, self.rotary.kind)


def join_angles(output: Any, kind: str) -> Tensor:
    """Return what a rotary module returned as cos + i sin, complex128 [P, channels]."""
    if kind == "complex":
        table = output.to(torch.complex128)
    else:
        first, second = output if kind == "cos, sin" else output[::-1]
        table = torch.complex(first.double(), second.double())
    return table.reshape(-1, *table.shape[-2:])[0].cpu()


def take_pairs(table: Tensor) -> Tensor:
    """Return one column for each pair of channels of a table [P, channels]."""
    width, known = table.shape[-1], table.nan_to_num()
    if width % 2 == 0 and torch.equal(known[:, : width // 2], known[:, width // 2 :]):
        return table[:, : width // 2]
    if width % 2 == 0 and torch.equal(known[:, ::2], known[:, 1::2]):
        return table[:, ::2]
    return table


def record_calls(subject: AuditSubject) -> list[RotaryCall]:
    """Return the calls of rotary modules in a pass, one for each module and type of layers.

    Raises:
        NotAskedError: No module makes angles.
    """
    model = subject.model
    if model is None:
        raise NotAskedError("functions have no rotary modules")
    if next(model.parameters()).dtype in OUTPUT:
        # cos and sin are recognized by their squares, which half precision rounds.
        model = copy.deepcopy(model).float()
        subject = replace_model(subject, model)
    ids = subject.draw_ids(1, COUNT)
    observer = Observer(model)
    entered: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    with observer.watching(), ExitStack() as stack:
        for path, module in model.named_modules():
            handle = module.register_forward_pre_hook(
                lambda module, args, kwargs, path=path: entered.append((path, args, kwargs)),
                with_kwargs=True,
            )
            stack.callback(handle.remove)
        subject.logits(ids)
    if not observer.rotaries:
        raise NotAskedError("no module of the model makes angles")
    calls: dict[tuple[str, str | None], RotaryCall] = {}
    for path, args, kwargs in entered:
        if path in observer.rotaries:
            names = [one for one in (*args, *kwargs.values()) if isinstance(one, str)]
            layer_type = names[0] if names else None
            call = RotaryCall(observer.rotaries[path], args, kwargs, layer_type)
            calls.setdefault((path, layer_type), call)
    return list(calls.values())


@dataclass(frozen=True)
class ConfiguredRotation:
    """The rotation that a configuration describes.

    Attributes:
        entries: The rotary entries.
        length: `max_position_embeddings`.
        pairs: Number of pairs of channels that turn.
        count: Number of tokens of the text, which some rules follow; the original length by
            default.
    """

    entries: Mapping[str, Any]
    length: int
    pairs: int
    count: int | None = None

    @property
    def kind(self) -> str:
        """The rule that scales frequencies."""
        return read_kind(self.entries)

    def compute(self, **changes: Any) -> tuple[Tensor, float]:
        """Return frequencies [pairs] and the factor of cos and sin by zoo's own rules.

        Args:
            **changes: Entries in place of the configured ones; None removes an entry.

        Raises:
            OptionError: `rope` has no such rule.
        """
        entries = {
            key: value
            for key, value in {**self.entries, **changes}.items()
            if key not in (*OF_ATTENTION, *OF_AXES) and value is not None
        }
        options = read_rope_parameters(entries, self.length)
        if self.kind in FIXED_LENGTH and "scaling" in options:
            scaling = options["scaling"]
            options["scaling"] = {**scaling, "length": self.count or scaling["original"]}
        return compute_rope(options, 2 * self.pairs, self.length)


def read_entries(config: Any) -> list[Mapping[str, Any]]:
    """Return the rotary entries of a configuration, one mapping for each type of layers."""
    entries = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    if entries and all(one is None or isinstance(one, Mapping) for one in entries.values()):
        return [one for one in entries.values() if one and "rope_theta" in one]
    if "rope_theta" in entries:
        return [entries]
    # Classes outside transformers keep the base as an entry of its own.
    bases = (getattr(config, name, None) for name in BASE_ENTRIES)
    base = next((one for one in bases if isinstance(one, int | float)), None)
    return [] if base is None else [{**entries, "rope_theta": float(base)}]


def read_configured(
    config: Any, layer_type: str | None, measured: Tensor
) -> ConfiguredRotation | None:
    """Return the rotary entries of a configuration for a rotary module; None if it has none.

    Args:
        config: The configuration of the text model.
        layer_type: The type of layers that the module was called for.
        measured: What it turns by [pairs].
    """
    length = int(getattr(config, "max_position_embeddings", None) or POSITIONS)
    by_type = getattr(config, "rope_parameters", None) or {}
    named = by_type.get(layer_type) if layer_type is not None else None
    if isinstance(named, Mapping) and "rope_theta" in named:
        return ConfiguredRotation(named, length, len(measured))
    choices = [ConfiguredRotation(one, length, len(measured)) for one in read_entries(config)]
    for choice in choices:
        try:
            if are_same_frequencies(measured, choice.compute()[0]):
                return choice
        except OptionError:
            continue
    return choices[0] if choices else None


@dataclass(frozen=True)
class RotaryFault:
    """How a rotary module differs from its configuration.

    Attributes:
        path: The module.
        error: Largest difference of cos and sin.
        bound: The difference that rounding explains there.
        since: The first position.
        cause: A sentence.
        explanation: A key of `EXPLANATIONS`.
    """

    path: str
    error: float
    bound: float
    since: int | None
    cause: str
    explanation: str | None


@dataclass(frozen=True)
class RotaryTable:
    """The angles of a rotary module at all positions, and what they should be.

    Attributes:
        table: cos + i sin [P, pairs].
        frequencies: What they should turn by, radians per token [pairs].
        factor: What their modulus should be.
        dtype: Dtype of the output.
        noise: Error of what was measured, for a factor of 1.
    """

    table: Tensor
    frequencies: Tensor
    factor: float
    dtype: torch.dtype
    noise: float = 2e-5

    def compute_errors(self) -> tuple[Tensor, Tensor]:
        """Return errors and bounds [P, pairs]."""
        places = torch.arange(len(self.table), dtype=torch.float64)[:, None]
        angles = places * self.frequencies
        expected = torch.polar(torch.full_like(angles, self.factor), angles)
        bounds = self.factor * (ANGLE * angles.abs() + self.noise + OUTPUT.get(self.dtype, 0.0))
        return (self.table - expected).abs(), bounds

    def compare(self) -> tuple[float, float, int | None]:
        """Return the largest error relative to its bound, that bound, and the first position.

        The position is None if no error exceeds its bound.
        """
        errors, bounds = self.compute_errors()
        ratios = errors / bounds
        place = int(ratios.amax(-1).argmax())
        channel = int(ratios[place].argmax())
        broken = ~(ratios.amax(-1) <= 1)
        since = int(broken.nonzero()[0]) if bool(broken.any()) else None
        return float(errors[place, channel]), float(bounds[place, channel]), since


def measure_frequencies(call: AnglesCall, model: Any) -> tuple[Tensor, float]:
    """Return radians per token [pairs] and the factor of a rotary module, measured.

    Far positions are left out if a table ends before them, or if they do not continue near ones.
    """
    places = FAR
    while True:
        try:
            table = take_pairs(call.compute(model, torch.tensor(places)))
            break
        except IndexError:
            places = places[:-1]
            if len(places) < len(PLACES):
                raise
    return follow_angles(table.angle(), places), float(table[0].abs().max())


def follow_angles(angles: Tensor, places: Sequence[int]) -> Tensor:
    """Return radians per token [pairs] of angles [places, pairs], as far as they grow evenly."""
    frequencies = unwrap_angles(angles[: len(PLACES)], places[: len(PLACES)])
    for count in range(len(PLACES) + 1, len(places) + 1):
        better = unwrap_angles(angles[:count], places[:count])
        # Rounding of angles in float32 grows with the position.
        rounding = (better - frequencies).abs() * places[count - 2]
        if bool((rounding > 1e-4 + ANGLE * places[count - 1]).any()):
            break
        frequencies = better
    return frequencies


def check_call(
    call: AnglesCall,
    model: Any,
    config: Any,
    dtypes: Sequence[torch.dtype],
    twin: AuditSubject | None,
    notes: list[str],
) -> tuple[float, float, RotaryFault | None]:
    """Compare a rotary module with the configuration at all positions.

    Args:
        call: The module.
        model: The model that has it; None for a layer alone.
        config: The configuration of the text model.
        dtypes: Dtypes of the states that the module receives.
        twin: The installed class, or None.
        notes: Receives what is worth knowing.

    Returns:
        The largest error relative to its bound and that bound, and the fault, if there is one.
    """
    path = call.rotary.path
    table = take_pairs(call.compute(model, torch.arange(COUNT)))
    measured = measure_frequencies(call, model)
    configured = read_configured(config, call.layer_type, measured[0])
    kind = configured.kind if configured is not None else "default"
    count = max(POSITIONS, getattr(config, "max_position_embeddings", 0) or 0)
    try:
        call.compute(model, torch.tensor([count - 1]))
    except IndexError:
        # A table without later positions refuses them, which is no fault.
        count = int(config.max_position_embeddings)
    expected = _expect(call, configured, measured, twin, notes)
    if kind not in FIXED_LENGTH:
        longer = take_pairs(call.compute(model, torch.arange(min(64 * COUNT, count))))[:COUNT]
        error = float((longer - table).abs().max())
        if error > 1e-3 and not _is_still(table):
            cause = "the angles of a position depend on the number of tokens in a call"
            fault = RotaryFault(path, error, 1e-3, None, cause, "length_of_call")
            return error, 1e-3, fault

    lengths = [count]
    if kind in FIXED_LENGTH and configured is not None:
        # The frequencies of short texts, and those of long ones.
        lengths = [_read_original(configured), count]
    worst = (0.0, 1.0)
    for length in lengths:
        for dtype in dict.fromkeys(dtypes):
            full = take_pairs(call.compute(model, torch.arange(length), dtype))
            frequencies, factor = expected
            if kind in FIXED_LENGTH and configured is not None:
                configured = replace(configured, count=length)
                frequencies, factor = configured.compute()
            tables = RotaryTable(full, frequencies, factor, dtype)
            error, bound, since = tables.compare()
            if since is None:
                worst = max(worst, (error, bound), key=lambda pair: pair[0] / pair[1])
                continue
            cause, explanation = _explain(measured[0], configured, tables, since, config)
            if twin is not None and explanation in ("base", "exponents", "factor", "frequencies"):
                others = measure_frequencies(call, twin.model)[0]
                if are_same_frequencies(measured[0], others):
                    cause = (
                        f"{cause}; the installed class {type(twin.model).__name__} does the same"
                    )
            return error, bound, RotaryFault(path, error, bound, since, cause, explanation)
    if twin is None:
        other = _check_fraction(path, config, configured, len(measured[0]))
        if other is not None:
            return other.error, other.bound, other
    return *worst, None if model is None else _check_axes(call, model, twin)


def _check_fraction(
    path: str, config: Any, configured: ConfiguredRotation | None, pairs: int
) -> RotaryFault | None:
    """Compare the number of turning channels with the configured fraction."""
    entries = {} if configured is None else configured.entries
    fraction = entries.get("partial_rotary_factor")
    if fraction is None:
        fraction = getattr(config, "partial_rotary_factor", None)
    width = getattr(config, "head_dim", None)
    if not isinstance(fraction, int | float) or not isinstance(width, int):
        return None
    if configured is not None and configured.kind == "proportional":
        return None  # its still channels are in the table
    count = int(width * fraction)
    if count // 2 == pairs or count % 2:
        return None
    cause = f"{2 * pairs} channels turn where the configured fraction {fraction:g} of {width} is"
    return RotaryFault(path, 1.0, 0.0, None, f"{cause} {count}", "layout")


def _read_original(configured: ConfiguredRotation) -> int:
    return int(configured.entries.get("original_max_position_embeddings", configured.length))


def _expect(
    call: AnglesCall,
    configured: ConfiguredRotation | None,
    measured: tuple[Tensor, float],
    twin: AuditSubject | None,
    notes: list[str],
) -> tuple[Tensor, float]:
    """Return frequencies and factor by the rules of zoo.

    The installed class decides only where the configuration has no entries that zoo knows, and
    where it is silent, too, the module itself for positions far from 0.
    """
    path = call.rotary.path
    if configured is not None:
        try:
            return configured.compute()
        except OptionError as error:
            notes.append(f"{path}: {error.message}")
    if twin is not None:
        return measure_frequencies(call, twin.model)
    notes.append(f"{path}: neither the configuration nor an installed class names frequencies")
    return measured


def _is_still(table: Tensor) -> bool:
    return bool((table.angle().abs() < 1e-6).all())


def _explain(
    measured: Tensor,
    configured: ConfiguredRotation | None,
    tables: RotaryTable,
    since: int,
    config: Any,
) -> tuple[str, str | None]:
    """Return a sentence about a difference, and the explanation that reproduces it."""
    table, frequencies = tables.table, tables.frequencies
    if _is_still(table):
        return "the angles of all positions are 0", "does_not_turn"
    turned = torch.polar(torch.ones_like(tables.table.real), tables.table.angle())
    as_configured = RotaryTable(turned, frequencies, 1.0, tables.dtype, tables.noise)
    errors, bounds = as_configured.compute_errors()
    if bool((errors <= bounds).all()):
        factor = float(table.abs().mean())
        sentence = f"cos and sin have the factor {factor:.6g} where the configuration has"
        return f"{sentence} {tables.factor:.6g}", "attention_factor"
    for explanation, planted in _plant_rounded_positions(frequencies, tables.factor, len(table)):
        part = min(len(table), 2**14)
        if (table[:part] - planted[:part]).abs().max() <= 2e-3 + OUTPUT.get(tables.dtype, 0.0):
            dtype = explanation.partition("_")[0]
            return f"the angles are those of positions in {dtype}", explanation
    if since > 1:
        if torch.allclose(table[since:], table[since - 1].expand_as(table[since:]), atol=1e-6):
            sentence = f"positions from {since:,} have the angles of position {since - 1:,}"
            return sentence, "table_ends"
        repeated = table[torch.arange(len(table)) % since]
        if torch.allclose(table, repeated, atol=1e-3):
            return f"the angles repeat after {since:,} positions", "table_wraps"
    for explanation, cause, candidate in list_hypotheses(configured, frequencies, measured, config):
        if are_same_frequencies(measured, candidate, tables.noise / 2):
            return cause, explanation
    if since <= FAR[-1]:
        ratio = measured / frequencies
        place = int((ratio - 1).abs().argmax())
        sentence = f"pair {place} turns by {float(measured[place]):.6g} radians per token where"
        return f"{sentence} {float(frequencies[place]):.6g} are expected", "frequencies"
    return f"the angles differ from position {since:,}", None


def _plant_rounded_positions(
    frequencies: Tensor, factor: float, count: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tables that rounded positions give, with the explanation."""
    places = torch.arange(min(count, 2**14))[:, None]
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        rounded = frequencies.float()
        for angles in (
            (places.to(dtype) * rounded.to(dtype)).double(),
            places.to(dtype).double() * rounded.double(),
            (places * rounded).to(dtype).double(),
        ):
            yield f"{name}_positions", torch.polar(torch.full_like(angles, factor), angles)
    cut = (places.float().view(torch.int32) & ~0x1FFF).view(torch.float32)
    nearest = ((places.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    fine = frequencies.float()
    coarse = ((fine.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    for positions in (cut, nearest):
        for turns in (fine, coarse):
            angles = (positions * turns).double()
            yield "tf32_positions", torch.polar(torch.full_like(angles, factor), angles)


def list_hypotheses(
    configured: ConfiguredRotation | None, frequencies: Tensor, measured: Tensor, config: Any
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield explanations with sentences and the frequencies that they lead to.

    Args:
        configured: What the configuration says.
        frequencies: What the module should turn by [pairs].
        measured: What it turns by [pairs].
        config: The configuration of the text model.
    """
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).rpartition(".")[2]
        rounded = frequencies.float().to(dtype).double()
        yield "frequencies_rounded", f"the frequencies were rounded to {name}", rounded
    if configured is None:
        return
    pairs = configured.pairs
    base = float(configured.entries["rope_theta"])
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for count in dict.fromkeys((width, 2 * width, width // 2, config.hidden_size, pairs)):
        if configured.kind == "default" and count != 2 * pairs:
            cause = f"exponents are counted over {count} channels where the configuration's"
            candidate = base ** (-2 * torch.arange(pairs, dtype=torch.float64) / count)
            yield "exponents", f"{cause} convention counts {2 * pairs}", candidate
    bases = list(BASES)
    if pairs > 1 and 0 < float(measured[1]) < 1:
        bases.append(float(measured[1]) ** -pairs)
    changes: list[tuple[str, str, dict[str, Any]]] = [
        (
            "base",
            f"base {other:,.6g} where the configuration has {base:,.6g}",
            {"rope_theta": other},
        )
        for other in bases
        if not math.isclose(other, base, rel_tol=1e-4)
    ]
    changes += _list_changes(configured, frequencies, measured)
    for explanation, cause, entries in changes:
        try:
            yield explanation, cause, configured.compute(**entries)[0]
        except OptionError:
            continue
    # A factor that the configuration lacks.
    ratio = float((measured / frequencies).median())
    if not math.isclose(ratio, 1.0, rel_tol=1e-4):
        yield "factor", f"all frequencies are scaled by {ratio:.6g}", frequencies * ratio


def _list_changes(
    configured: ConfiguredRotation, frequencies: Tensor, measured: Tensor
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield changes of the entries of a rule that scales frequencies."""
    entries = configured.entries
    factor = entries.get("factor")
    if configured.kind == "default" or factor is None:
        return
    plain: dict[str, Any] = {key: None for key in entries if key != "rope_theta"}
    plain |= {"rope_type": "default"}
    cause = f"the frequencies are not scaled; the configuration has {configured.kind}"
    yield "factor", f"{cause} with factor {factor:g}", plain
    ratios = (frequencies / measured * factor).tolist()
    for other in dict.fromkeys((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0, ratios[-1])):
        if other >= 1 and not math.isclose(other, factor, rel_tol=1e-4):
            cause = f"factor {other:.6g} where the configuration has {factor:g}"
            yield "factor", cause, {"factor": other}
    original = entries.get("original_max_position_embeddings")
    if original is not None:
        for other in dict.fromkeys((configured.length, int(original * factor), *LENGTHS)):
            if other != original:
                cause = f"original length {other:,} where the configuration has {original:,}"
                yield "original_length", cause, {"original_max_position_embeddings": other}


def _check_axes(call: AnglesCall, model: Any, twin: AuditSubject | None) -> RotaryFault | None:
    """Compare which axis of positions turns each pair with the sections of the configuration."""
    tensors = [one for one in (*call.args, *call.kwargs.values()) if isinstance(one, Tensor)]
    count = next((len(one) for one in tensors if one.dim() == 3 and not one.is_floating_point()), 0)
    if count < 2:
        return None
    axes = find_axes(call, model, count)
    if twin is not None:
        expected, sections = find_axes(call, twin.model, count), "those of the model type"
    else:
        named = [one.get("mrope_section") for one in read_entries(model.config.get_text_config())]
        numbers = named[0] if named else None
        if not numbers or sum(numbers) != len(axes):
            return None
        expected = torch.arange(len(numbers)).repeat_interleave(torch.tensor(numbers))
        sections = f"sections {tuple(numbers)}"
        if axes.unique().numel() > 1 and torch.equal(axes.sort().values, expected):
            return None  # the same numbers of pairs, interleaved
    if torch.equal(axes, expected):
        return None
    if axes.unique().numel() == 1:
        cause = f"the sections of the configuration are ignored: all pairs turn by axis {axes[0]}"
    else:
        place = int((axes != expected).nonzero()[0])
        cause = (
            f"pair {place} turns by axis {axes[place]}, not by axis {expected[place]} of {sections}"
        )
    return RotaryFault(call.rotary.path, 1.0, 0.0, None, cause, "sections")


def find_axes(call: AnglesCall, model: Any, count: int) -> Tensor:
    """Return by which axis of positions each pair turns [pairs]; -1 for several."""
    turns = []
    for axis in range(count):
        positions = torch.zeros(count, 2, dtype=torch.long)
        positions[axis, 1] = 1
        turns.append(take_pairs(call.compute(model, positions))[1].angle().abs() > 1e-7)
    moved = torch.stack(turns)
    return torch.where(moved.sum(0) == 1, moved.int().argmax(0), -1)


@dataclass(frozen=True)
class Turning:
    """Which channels of queries and keys an attention turns.

    Attributes:
        path: The attention.
        queries: Channels of queries; None if they do not turn.
        keys: Channels of keys; None if they do not turn.
    """

    path: str
    queries: TurnedChannels | None
    keys: TurnedChannels | None

    def describe(self) -> str:
        """Return the layout as text."""
        return f"queries {describe_channels(self.queries)}, keys {describe_channels(self.keys)}"


def describe_channels(channels: TurnedChannels | None) -> str:
    """Return a layout of channels as text."""
    if channels is None:
        return "still"
    step = channels.width // 2 if channels.halves else 1
    return f"{channels.start}:{channels.stop} in pairs (i, i + {step})"


def record_turns(
    subject: AuditSubject, rotaries: Sequence[RotaryModule], positions: Tensor | None = None
) -> dict[str, tuple[ScoreCall, ScoreCall]]:
    """Return the scores of each attention with angles of 0 and with the model's own.

    The outputs of attentions are held, so that both have the same inputs.

    Args:
        subject: A subject with a model.
        rotaries: The modules that make angles. Without any, all tokens have position 0 in place of
            theirs.
        positions: Positions [B, N]; by default 0, 1, 2, ...
    """
    model = subject.model
    ids = subject.draw_ids(2, COUNT) if positions is None else subject.draw_ids(1, COUNT)
    own = {} if positions is None else {"positions": positions}
    if positions is not None:
        ids = ids.expand(positions.shape)
    modules = find_scoring(model, lambda: subject.logits(ids[:, :4]))
    with keeping(modules) as outputs, record_scores(model) as on:
        subject.logits(ids, **own)
    with holding(outputs), record_scores(model) as off:
        if rotaries:
            with neutralized(model, rotaries):
                subject.logits(ids, **own)
        else:
            subject.logits(ids, positions=torch.zeros_like(ids))
    names = {module: path for path, module in model.named_modules()}
    turns: dict[str, tuple[ScoreCall, ScoreCall]] = {}
    for before, after in zip(off, on, strict=False):
        if before.module is after.module and before.q.shape == after.q.shape:
            turns.setdefault(names[after.module], (before, after))
    return turns


def find_turnings(subject: AuditSubject, rotaries: Sequence[RotaryModule]) -> dict[str, Turning]:
    """Return which channels each attention turns, where that can be measured."""
    widths = sorted({width for rotary in rotaries for width in rotary.widths})
    turnings = {}
    for path, (before, after) in record_turns(subject, rotaries).items():
        try:
            channels = []
            for off, on in ((before.q, after.q), (before.k, after.k)):
                rotation = fit_rotation(off, on, widths or list_widths(on))
                channels.append(None if rotation is None else rotation.channels)
            turnings[path] = Turning(path, *channels)
        except (OptionError, ValueError):
            continue
    return turnings


def list_widths(heads: Tensor) -> list[int]:
    """List numbers of channels that may turn of heads [B, H, N, K]."""
    width = heads.shape[-1]
    return sorted({width, width // 2 // 2 * 2, width // 4 // 2 * 2, 3 * width // 4 // 2 * 2} - {0})


def check_turnings(
    subject: AuditSubject,
    twin: AuditSubject | None,
    rotaries: Sequence[RotaryModule],
    notes: list[str],
) -> RotaryFault | None:
    """Compare how attentions turn queries and keys with the installed class.

    A configuration names no layout, so that it is a note where no class says what is right.
    """
    turnings = find_turnings(subject, rotaries)
    if twin is None:
        layouts = dict.fromkeys(turning.describe() for turning in turnings.values())
        notes += [f"rotary: {layout}" for layout in layouts]
    expected = {} if twin is None or not turnings else find_turnings(twin, rotaries)
    for path, turning in turnings.items():
        other = expected.get(path)
        queries, keys = turning.queries, turning.keys
        is_other = other is not None and turning != other
        if (queries is None) != (keys is None) and (other is None or is_other):
            cause = f"only one of queries and keys turns: {turning.describe()}"
            return RotaryFault(turning.path, 1.0, 0.0, None, cause, "keys_not_turned")
        if is_other and other is not None and queries is not None:
            cause = f"{turning.describe()}, where the model type has {other.describe()}"
            return RotaryFault(turning.path, 1.0, 0.0, None, cause, "layout")
        if other is None and queries != keys:
            cause = f"queries and keys turn differently: {turning.describe()}"
            return RotaryFault(turning.path, 1.0, 0.0, None, cause, "layout")
    return None


def check_applied(
    subject: AuditSubject, notes: list[str]
) -> tuple[float, float, RotaryFault | None]:
    """Compare what attentions apply with the configuration, where no module makes angles.

    Raises:
        NotAskedError: No attention turns queries by given positions.
    """
    missing = "no module of the model makes angles"
    if subject.model is None or "positions" not in subject.options:
        raise NotAskedError(missing)
    model = subject.model
    config = model.config.get_text_config()
    fault = check_turnings(subject, None, (), notes)
    if fault is not None:
        return fault.error, fault.bound, fault
    # A pass computes all layers, so that a large model is asked at fewer positions.
    size = sum(parameter.numel() for parameter in model.parameters())
    count = (2**15 if size < 2**23 else 2**12) // COUNT * COUNT
    worst, is_turned = (0.0, 1.0), False
    tables: dict[str, list[Tensor]] = {}
    layouts: dict[str, OwnRotation] = {}
    for path, (before, after) in record_turns(subject, ()).items():
        try:
            rotation = fit_rotation(before.q, after.q, list_widths(after.q))
        except OptionError:
            continue
        if rotation is not None:
            layouts[path] = rotation
    if not layouts:
        raise NotAskedError(missing)
    rows = torch.arange(count).view(-1, COUNT)
    for part in rows.split(128):
        for path, (before, after) in record_turns(subject, (), part).items():
            if path in layouts:
                channels = layouts[path].channels
                off, on = (to_pairs(one.q, channels) for one in (before, after))
                power = off.abs().square().sum(1).clamp(min=1e-30)
                tables.setdefault(path, []).append(((on * off.conj()).sum(1) / power).flatten(0, 1))
    for path, rotation in layouts.items():
        table = torch.cat(tables[path])
        measured = follow_angles(table[list(PLACES)].angle(), PLACES)
        configured = read_configured(config, None, measured)
        if configured is None or configured.kind in FIXED_LENGTH:
            notes.append(f"{path}: {rotation.channels} turn, by no configured rule")
            continue
        is_turned = True
        frequencies, factor = configured.compute()
        compared = RotaryTable(table, frequencies, factor, torch.float32, 1e-3)
        error, bound, since = compared.compare()
        if since is not None:
            cause, explanation = _explain(measured, configured, compared, since, config)
            return error, bound, RotaryFault(path, error, bound, since, cause, explanation)
        worst = max(worst, (error, bound), key=lambda pair: pair[0] / pair[1])
    if not is_turned:
        raise NotAskedError("the configuration names no rotation")
    notes.append(f"rotary: no module makes angles; queries were measured at {count:,} positions")
    return *worst, None


def check_cast(call: RotaryCall, subject: AuditSubject) -> str | None:
    """Return a note if a cast of the model to bfloat16 rounds its frequencies."""
    if next(subject.model.parameters()).dtype != torch.float32:
        return None
    half = copy.deepcopy(subject.model).to(torch.bfloat16)
    before, after = (measure_frequencies(call, model)[0] for model in (subject.model, half))
    if are_same_frequencies(after, before, 1e-4):
        return None
    return ".to(bfloat16) rounds the frequencies; load the model with dtype=torch.bfloat16 instead"


def check_rotations(
    subject: AuditSubject, twin: AuditSubject | None, notes: list[str]
) -> tuple[float, float, RotaryFault | None]:
    """Compare all rotations of a model with its configuration.

    Returns:
        The largest error relative to its bound, that bound, and the first fault.

    Raises:
        NotAskedError: The model has no rotation that can be called alone.
    """
    try:
        calls = record_calls(subject)
    except NotAskedError:
        return check_applied(subject, notes)
    config = subject.model.config.get_text_config()
    dtypes = (torch.float32, next(subject.model.parameters()).dtype)
    worst, refusals = (0.0, 1.0), []
    for call in calls:
        try:
            error, bound, fault = check_call(call, subject.model, config, dtypes, twin, notes)
        except NotAskedError as refusal:
            refusals.append(str(refusal))
            continue
        except (TypeError, RuntimeError, ValueError, IndexError) as refusal:
            refusals.append(f"{call.rotary.path} cannot be called alone: {refusal}")
            continue
        if fault is not None:
            return error, bound, fault
        worst = max(worst, (error, bound), key=lambda pair: pair[0] / pair[1])
    fault = check_turnings(subject, twin, list({call.rotary for call in calls}), notes)
    if fault is not None:
        return fault.error, fault.bound, fault
    if refusals:
        raise NotAskedError(refusals[0])
    note = check_cast(calls[0], subject)
    if note is not None:
        notes.append(note)
    return *worst, None
