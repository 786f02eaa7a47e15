"""Find the attentions of a model of transformers by what they do in a few passes.

A name tells nothing about a model that its calls do not tell: which modules call the attention
interface, in which order, with which tensors; which modules make angles, which channels they turn;
which tables are read by position; and what mixes tokens without attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from zoo.errors import OptionError
from zoo.integrations.evaluating import evaluating, stirred
from zoo.integrations.interface_calls import Handler, InterfaceCall, watch_interface
from zoo.integrations.own_rotation import (
    SAME_ANGLE,
    OwnRotation,
    find_turned_pairs,
    fit_rotation,
    is_rotation_in_other_axes,
    list_buffers,
    read_frequencies,
    sharpen_frequencies,
)
from zoo.integrations.weightless import is_weightless, stand_in_weights
from zoo.utils import raise_if_out_of_memory

# what a base model receives
INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features")
LENGTH = 24  # tokens of a text that finds the structure
CHANGED_TOKEN = 9
AXES = 3  # of the positions of texts with pictures
FAR_STEP = 4099  # between positions that also turn the slowest pairs
EDGE = 4  # tokens at the ends of a spectrogram that convolutions tell apart
MIXING = 1e-5  # relative change of another token by which a module mixes tokens


@dataclass(frozen=True)
class RotaryModule:
    """A module whose output rotates queries and keys.

    Attributes:
        path: Its path in the model.
        kind: What it returns: (cos, sin), (sin, cos) or complex numbers.
        widths: Numbers of channels of its tables; kinds of layers may have tables of their own.
    """

    path: str
    kind: str
    widths: tuple[int, ...]

    def neutralize(self, output: Any) -> Any:
        """Return an output of the module with angles of 0 in place of its own."""
        if self.kind == "complex":
            return torch.ones_like(output)
        first, second = output
        if self.kind == "cos, sin":
            return type(output)((torch.ones_like(first), torch.zeros_like(second)))
        return type(output)((torch.zeros_like(first), torch.ones_like(second)))


@dataclass(frozen=True)
class FoundAttention:
    """A module that computes an attention over tokens.

    Attributes:
        path: Its path in the model.
        dim: Number of channels of its input.
        heads: Number of query heads.
        kv_heads: Number of key-value heads.
        head_dim: Number of channels of a query.
        is_windowed: Whether it passes a window to the interface.
        rotation: Its own rotation, or None.
        has_bias: Whether it passes a bias of its own to the interface.
        caches_latents: Whether its cache stores what keys are made of, and not keys.
    """

    path: str
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    is_windowed: bool
    rotation: OwnRotation | None
    has_bias: bool
    caches_latents: bool


@dataclass(frozen=True)
class Structure:
    """The parts of a model that matter to positions, as paths.

    Attributes:
        base: The module that receives tokens or an image and contains all attentions.
        first: The first layer; encodings of the input are added before it.
        attentions: The attentions, in the order of their first calls.
        rotaries: The modules that make angles.
        readers: Modules inside an attention that read the angles for something else, such as the
            choice of keys.
        tables: Embeddings or parameters that are added for positions.
        mixers: Modules outside the attentions that mix tokens, with their classes.
        is_causal: Whether no token sees a later one.
        is_image: Whether the model reads images.
        hands_on: Whether its layers hand on keyword arguments that they do not know.
        keeps_rotation: Whether heads are scaled after its rotation, which is then none of what
            reaches the interface; it can be turned off, or stay in the model.
        refusal: Why its positions cannot be replaced; empty if they can.
    """

    base: str
    first: str
    attentions: tuple[FoundAttention, ...]
    rotaries: tuple[RotaryModule, ...]
    readers: tuple[str, ...]
    tables: tuple[str, ...]
    mixers: Mapping[str, str]
    is_causal: bool
    is_image: bool
    hands_on: bool
    keeps_rotation: bool
    refusal: str


@dataclass
class Trace:
    """The attention calls of one pass of a model."""

    calls: list[InterfaceCall] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    """The output of each call."""


class StructureFinder:
    """Find the structure of a model.

    Args:
        model: A model of transformers with weights.

    Raises:
        OptionError: The model is not understood, with what was seen and where.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.names = {module: path for path, module in model.named_modules()}
        self.is_image = model.main_input_name == "pixel_values"
        self.inputs = make_inputs(model)
        self.refusal = ""
        self.keeps_rotation = False
        self.partial_call: InterfaceCall | None = None  # one that sees a part of the tokens

    def find(self) -> Structure:
        """Run the model a few times, and return what was found."""
        with stirred(self.model), evaluating(self.model):
            trace, seen = self._record()
            if not trace.calls:
                raise OptionError("model", self._explain_no_calls())
            attentions = list(dict.fromkeys(call.module for call in trace.calls))
            rotaries = tuple(seen.rotaries.values())
            base, first = self._find_base(attentions)
            is_causal = self._is_causal(trace)
            latents = self._find_latents(attentions)
            hands_on = self._hands_on(base, attentions)
            mixers = self._try(self._find_mixers, {}, trace)
            none = dict.fromkeys(attentions)
            rotations = self._try(self._fit_rotations, none, trace, rotaries, seen)
            tables = self._try(self._find_tables, (), trace, rotaries, mixers)
            self._try(self._check_causality, None, is_causal, attentions)
            self._try(self._check_masks, None, trace)
        parts = []
        for module in attentions:
            call = next(call for call in trace.calls if call.module is module)
            parts.append(
                FoundAttention(
                    self.names[module],
                    seen.widths[module],
                    call.q.shape[1],
                    call.k.shape[1],
                    call.q.shape[-1],
                    call.options.get("sliding_window") is not None,
                    rotations[module],
                    call.options.get("position_bias") is not None,
                    module in latents,
                )
            )
        readers = tuple(self.names[module] for module in seen.find_readers(attentions))
        return Structure(
            self.names[base],
            self.names[first],
            tuple(parts),
            rotaries,
            readers,
            tables,
            mixers,
            is_causal,
            self.is_image,
            hands_on,
            self.keeps_rotation,
            self.refusal,
        )

    def _try(self, step: Callable[..., Any], default: Any, *arguments: Any) -> Any:
        """Return what a step finds; keep the first law that is broken, and return a default."""
        try:
            return step(*arguments)
        except OptionError as error:
            self.refusal = self.refusal or str(error.message)
            return default

    def _check_masks(self, trace: Trace) -> None:
        """Check that masks hide tokens, and add nothing to scores.

        Raises:
            OptionError: A mask has other numbers than 0 and the smallest.
        """
        for call in trace.calls:
            mask = call.mask
            if mask is None or not mask.is_floating_point():
                continue
            hidden = mask <= torch.finfo(mask.dtype).min / 2
            if mask.masked_fill(hidden, 0).any():
                where = f"the attention {self.names[call.module]}"
                problem = "adds numbers to its scores by the mask, which zoo would leave out"
                raise OptionError("model", f"law mask: {where} {problem}")

    def _check_causality(self, is_causal: bool, attentions: Sequence[nn.Module]) -> None:
        """Check that a token sees later ones only where the model says so.

        Raises:
            OptionError: It does, although the model says that it does not.
        """
        if self.is_image:
            return
        stated = getattr(self.model.config.get_text_config(), "is_causal", None)
        if stated is None:
            stated = any(getattr(module, "is_causal", False) is True for module in attentions)
        if stated and not is_causal:
            where = f"the attention {self.names[attentions[0]]}"
            problem = "has is_causal=True, and its output depends on later tokens"
            raise OptionError("model", f"law causality: {where} {problem}")

    def _hands_on(self, base: nn.Module, attentions: Sequence[nn.Module]) -> bool:
        """Return whether a keyword argument of the base reaches every attention."""
        name, reached = "zoo_pass", set()

        def add(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            return args, {**kwargs, name: None}

        def look(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if name in kwargs:
                reached.add(module)

        with ExitStack() as stack:
            handle = base.register_forward_pre_hook(add, with_kwargs=True)
            stack.callback(handle.remove)
            for module in attentions:
                handle = module.register_forward_pre_hook(look, with_kwargs=True)
                stack.callback(handle.remove)
            try:
                self.run(lambda call: call.compute())
            except TypeError:
                return False
        return reached == {*attentions}

    def _find_latents(self, attentions: Sequence[nn.Module]) -> set[nn.Module]:
        """Find the attentions whose cache stores something else than their keys."""
        if "use_cache" not in self.inputs:
            return set()
        current: list[nn.Module] = []
        stored: dict[nn.Module, Tensor] = {}
        latents: set[nn.Module] = set()
        update = Cache.update

        def enter(module: nn.Module, args: Any) -> None:
            current[:] = [module]

        def watch(cache: Cache, keys: Tensor, *args: Any, **options: Any) -> Any:
            if current:
                stored[current[0]] = keys
            return update(cache, keys, *args, **options)

        def compare(call: InterfaceCall) -> Any:
            keys = stored.get(call.module)
            if keys is not None and not (
                keys.shape == call.k.shape and torch.equal(keys.to(call.k), call.k)
            ):
                latents.add(call.module)
            return call.compute()

        with ExitStack() as stack:
            stack.callback(setattr, Cache, "update", update)
            Cache.update = watch
            for module in attentions:
                stack.callback(module.register_forward_pre_hook(enter).remove)
            self.run(compare, {**self.inputs, "use_cache": True})
        return latents

    def run(self, handle: Handler, inputs: Mapping[str, Any] | None = None) -> Any:
        """Run the model and hand each call of the interface to a function."""
        with watch_interface(self.model, handle):
            return self.model(**(self.inputs if inputs is None else inputs))

    def _record(self) -> tuple[Trace, Observer]:
        """Run the unchanged model."""
        trace, seen = Trace(), Observer(self.model)

        def keep(call: InterfaceCall) -> Any:
            output = call.compute()
            # Other uses of the interface, such as a mixture of depths, are left alone.
            if self._is_over_tokens(call):
                trace.calls.append(call)
                trace.outputs.append(output)
            else:
                self.partial_call = call
            return output

        with seen.watching():
            self.run(keep)
        return trace, seen

    def _is_over_tokens(self, call: InterfaceCall) -> bool:
        rows, _, count, _ = call.q.shape
        expected = self.inputs["input_ids"].shape[1] if "input_ids" in self.inputs else count
        return rows == len(next(iter(self.inputs.values()))) and (
            expected == count == call.k.shape[2] and count > 1
        )

    def _replay(self, trace: Trace, **inputs: Any) -> list[InterfaceCall]:
        """Run the model with the outputs of attentions as they were before; return its calls."""
        calls: list[InterfaceCall] = []

        def replay(call: InterfaceCall) -> Any:
            if not self._is_over_tokens(call):
                return call.compute()
            calls.append(call)
            return trace.outputs[len(calls) - 1]

        self.run(replay, {**self.inputs, **inputs})
        return calls

    def _explain_no_calls(self) -> str:
        if self.is_image and self.partial_call is not None:
            rows, _, count, _ = self.partial_call.q.shape
            images = len(next(iter(self.inputs.values())))
            problem = f"{type(self.model).__name__} computes windows as rows of their own"
            seen = f"{rows} rows of {count} tokens for {images} images"
            reason = "and zoo knows attentions over all tokens of an image"
            remedy = "output_attentions=True with the eager implementation returns their weights"
            return f"{problem} ({seen}), {reason}; {remedy}"
        problem = f"{type(self.model).__name__} computes no attention by transformers' interface"
        return f"{problem}, where encodings act; see zoo.Attention for a layer in your own model"

    def _fit_rotations(
        self, trace: Trace, rotaries: Sequence[RotaryModule], seen: Observer
    ) -> dict[nn.Module, OwnRotation | None]:
        """Return the rotation of each attention.

        Raises:
            OptionError: Angles change queries or keys in a way that is no rotation by position.
        """
        found: dict[nn.Module, OwnRotation | None] = {call.module: None for call in trace.calls}
        if not rotaries or self.is_image:
            return found
        with neutralized(self.model, rotaries):
            still = self._replay(trace)
        known = [
            *(one for rotary in rotaries for one in self._list_frequencies(rotary)),
            *map(read_frequencies, seen.tables),
        ]
        widths = sorted({width for rotary in rotaries for width in rotary.widths})
        for call, off in zip(trace.calls, still, strict=True):
            pairs = ((off.q, call.q), (off.k, call.k))
            where = f"law rotation, the attention {self.names[call.module]}"
            try:
                rotation = _join_rotations(*(fit_rotation(*pair, widths) for pair in pairs))
            except OptionError as error:
                if all(is_rotation_in_other_axes(*pair, widths[0]) for pair in pairs):
                    self.keeps_rotation = True
                    continue
                raise OptionError("model", f"{where}: {error.message}") from None
            found[call.module] = rotation
        turning = {module: rotation for module, rotation in found.items() if rotation is not None}
        # NanoChat turns backwards in all layers; in one of several this would be a fault
        if all(rotation.frequencies.sum() < 0 for rotation in turning.values()):
            known = [-frequencies for frequencies in known]
        for module, rotation in turning.items():
            try:
                found[module] = sharpen_frequencies(rotation, known)
            except OptionError as error:
                where = f"law rotation, the attention {self.names[module]}"
                raise OptionError("model", f"{where}: {error.message}") from None
        return self._add_axes(trace, still, found)

    def _add_axes(
        self,
        trace: Trace,
        still: Sequence[InterfaceCall],
        found: dict[nn.Module, OwnRotation | None],
    ) -> dict[nn.Module, OwnRotation | None]:
        """Add the axis of positions that turns each pair, where a model takes three of them."""
        turning: list[dict[nn.Module, Tensor]] = []
        if not accepts(self.model, "position_ids"):
            return found
        rows, count = self.inputs["input_ids"].shape
        for axis in range(AXES):
            positions = torch.zeros(AXES, rows, count, dtype=torch.long)
            positions[axis] = FAR_STEP * torch.arange(count)
            try:
                calls = self._replay(trace, position_ids=positions.to(self.inputs["input_ids"]))
            # A model of texts refuses positions of this shape in one way or another.
            except Exception as error:
                raise_if_out_of_memory(error)
                return found
            moved = {}
            for call, off in zip(calls, still, strict=True):
                rotation = found[call.module]
                if rotation is not None:
                    moved[call.module] = find_turned_pairs(off.q, call.q, rotation.channels)
            turning.append(moved)
        added = {**found}
        for module, rotation in found.items():
            if rotation is None:
                continue
            pairs = torch.stack([moved[module] for moved in turning])  # [3, R/2]
            if not pairs[1:].any():
                return found
            still_pairs = rotation.frequencies == 0
            if not (still_pairs | (pairs.sum(0) == 1)).all():
                problem = f"law rotation, the attention {self.names[module]}: pairs of channels"
                raise OptionError("model", f"{problem} rotate by none or several of its axes")
            added[module] = replace(rotation, axes=tuple(pairs.long().argmax(0).tolist()))
        return added

    def _list_frequencies(self, rotary: RotaryModule) -> list[Tensor]:
        """List what may be the frequencies of a rotary module."""
        return list_buffers(self.model.get_submodule(rotary.path))

    def _find_mixers(self, trace: Trace) -> dict[str, str]:
        """Find what mixes tokens while the outputs of all attentions are held.

        Returns:
            The paths of these modules, the largest within their layers, and their classes.
        """
        if "input_ids" not in self.inputs:
            return {}
        ids = self.inputs["input_ids"]
        changed = ids.clone()
        changed[:, CHANGED_TOKEN] = self._other_tokens(changed[:, CHANGED_TOKEN])
        before = self._replay_outputs(trace, ids, {})
        held: dict[nn.Module, list[Any]] = {}
        kinds: set[type] = set()
        # Each kind of mixer hides the ones after it, until its outputs are held, too.
        while True:
            after = self._replay_outputs(trace, changed, held)
            hidden = [self.names[module] for module in held]
            seen = {m: outputs for m, outputs in before.items() if not self._is_in(m, hidden)}
            cause = next((m for m, outputs in seen.items() if _is_mixed(outputs, after[m])), None)
            if cause is None:
                break
            owner = self._find_owner(cause)
            if type(owner) in kinds or owner is self.model:
                place = self.names[owner] or "the model"
                problem = f"law mixing: {place} mixes tokens in a way that cannot be told apart"
                raise OptionError("model", problem)
            kinds.add(type(owner))
            held |= {module: outputs for module, outputs in before.items() if type(module) in kinds}
        return {self.names[module]: type(module).__name__ for module in held}

    def _is_in(self, module: nn.Module, paths: Sequence[str]) -> bool:
        return _is_within(self.names[module], paths)

    def _other_tokens(self, ids: Tensor) -> Tensor:
        """Return other tokens of the vocabulary than the given ones."""
        highest = int(self.inputs["input_ids"].max())
        return torch.where(ids < highest, highest, highest - 1)

    def _replay_outputs(
        self, trace: Trace, ids: Tensor, held: Mapping[nn.Module, Sequence[Any]]
    ) -> dict[nn.Module, list[Any]]:
        """Run the model with held attentions and modules; return the outputs of all modules."""
        outputs: dict[nn.Module, list[Any]] = {}

        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            outputs.setdefault(module, []).append(output)
            return held[module][len(outputs[module]) - 1] if module in held else None

        with ExitStack() as stack:
            for module in self.names:
                stack.callback(module.register_forward_hook(keep).remove)
            self._replay(trace, input_ids=ids)
        for module, values in held.items():
            outputs[module] = list(values)
        return outputs

    def _find_owner(self, module: nn.Module) -> nn.Module:
        """Return the largest module around another one below its layer."""
        path = self.names[module].split(".")
        layer = next((number for number, part in enumerate(path) if part.isdigit()), len(path))
        return self.model.get_submodule(".".join(path[: layer + 2]))

    def _find_base(self, attentions: Sequence[nn.Module]) -> tuple[nn.Module, nn.Module]:
        """Return the module that receives the input of the model, and its first layer."""
        # The list of layers is the first list on the way from the model to an attention.
        first_path = self.names[attentions[0]].split(".")
        number = next((i for i, part in enumerate(first_path) if part.isdigit()), None)
        if number is None:
            raise OptionError("model", f"{'.'.join(first_path)} is in no list of layers")
        layers: Any = self.model.get_submodule(".".join(first_path[:number]))
        ancestors = [".".join(first_path[:end]) for end in range(number)]
        candidates = [
            module
            for path in reversed(ancestors)
            if isinstance(module := self.model.get_submodule(path), PreTrainedModel)
            and {*INPUTS} & {*inspect.signature(module.forward).parameters}
        ]
        if not candidates:
            raise OptionError("model", "no module of the model receives its tokens")
        return candidates[0], layers[0]

    def _is_causal(self, trace: Trace) -> bool:
        """Return whether the output of a token does not depend on later ones."""
        if self.is_image or "input_ids" not in self.inputs:
            return False
        ids = self.inputs["input_ids"].clone()
        ids[:, -1] = (ids[:, -1] + 1) % int(ids.max())
        outputs = []

        def keep(call: InterfaceCall) -> Any:
            output = call.compute()
            if self._is_over_tokens(call):
                outputs.append(output)
            return output

        self.run(keep, {**self.inputs, "input_ids": ids})
        for before, after in zip(trace.outputs, outputs, strict=True):
            difference = (before[0] - after[0])[:, :-1].abs().max()
            if difference > MIXING * before[0].abs().max():
                return False
        return True

    def _find_tables(
        self, trace: Trace, rotaries: Sequence[RotaryModule], mixers: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Find the modules and parameters that are added for positions.

        Raises:
            OptionError: Something else of the model has positions.
        """
        tables = self._find_embeddings()
        if self.is_image:
            # Models of images add a parameter as it is.
            tables += [
                name
                for name, parameter in self.model.named_parameters()
                if "pos" in name.lower() and parameter.dim() > 1 and not _is_within(name, tables)
            ]
        # A recurrence distinguishes positions, which no table does.
        if not mixers:
            self._check_no_other_positions(tables, rotaries)
        return tuple(tables)

    def _find_embeddings(self) -> list[str]:
        """Find modules whose output does not depend on the input, and differs between tokens."""
        before = self._collect_embeddings(self.inputs)
        after = self._collect_embeddings(
            {
                name: self._other_tokens(values) if name == "input_ids" else values.flip(0)
                for name, values in self.inputs.items()
                if isinstance(values, Tensor)
            }
        )
        return [
            self.names[module]
            for module, output in before.items()
            if torch.equal(output, after[module])
            and not torch.equal(output, output[..., :1, :].expand_as(output))
        ]

    def _collect_embeddings(self, inputs: Mapping[str, Any]) -> dict[nn.Module, Tensor]:
        """Run the model; return the outputs [.., N, D] of modules that receive no states."""
        outputs: dict[nn.Module, Tensor] = {}

        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return
            given = [one for value in (*args, *kwargs.values()) for one in flatten(value)]
            has_states = any(one.dim() > 2 and one.is_floating_point() for one in given)
            if output.dim() in (2, 3) and output.shape[-2] > 1 and not has_states:
                outputs.setdefault(module, output)

        with ExitStack() as stack:
            for module in self.names:
                handle = module.register_forward_hook(keep, with_kwargs=True)
                stack.callback(handle.remove)
            self.run(lambda call: call.compute(), inputs)
        return outputs

    def _check_no_other_positions(
        self, tables: Sequence[str], rotaries: Sequence[RotaryModule]
    ) -> None:
        """Check that without tables, angles and scores all tokens are alike.

        Raises:
            OptionError: Equal tokens differ; the first module that tells them apart is named.
        """
        inputs = {
            name: values.flatten()[0].expand(values.shape).clone()
            for name, values in self.inputs.items()
            if isinstance(values, Tensor)
        }
        outputs: list[tuple[nn.Module, Tensor]] = []

        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            states = [one for one in flatten(output) if one.dim() == 3]
            if states and states[0].shape[1] > 1 and states[0].is_floating_point():
                outputs.append((module, states[0]))

        def average(call: InterfaceCall) -> Any:
            if not self._is_over_tokens(call):
                return call.compute()
            for heads in (call.q, call.k):
                # Heads of equal tokens point the same way, unless the attention turns them on its
                # own. Their length may follow the position: a temperature stays as it is.
                directions = nn.functional.normalize(heads, dim=-1)
                outputs.append((call.module, directions.transpose(1, 2).flatten(2)))
            mean = call.v.mean(2, keepdim=True).expand_as(call.v).transpose(1, 2)
            return mean.repeat_interleave(call.q.shape[1] // call.v.shape[1], 2), None

        with ExitStack() as stack:
            stack.enter_context(neutralized(self.model, rotaries))
            stack.enter_context(zeroed(self.model, tables))
            for layer in self._list_layers():
                stack.callback(layer.register_forward_hook(keep).remove)
            self.run(average, inputs)
        for module, states in outputs:
            # Tokens that stand for no patch come first.
            rows = states[:, -self._count_patches(states) :]
            if "input_features" in inputs:
                # Convolutions of a spectrogram see its ends.
                rows = rows[:, EDGE:-EDGE]
            spread = (rows - rows[:, -1:]).abs().max()
            # Equal rows of a product may be rounded in different ways.
            tolerance = max(100 * MIXING, 4 * torch.finfo(rows.dtype).eps)
            if spread > tolerance * rows.abs().max().clamp(min=1e-30):
                where = self.names[module]
                problem = f"law positions: {where} distinguishes equal tokens, without its tables"
                raise OptionError(
                    "model", f"{problem} ({', '.join(tables) or 'none'}), angles and attention"
                )

    def _list_layers(self) -> list[nn.Module]:
        """List the modules in lists of layers."""
        return [module for module, path in self.names.items() if path.split(".")[-1].isdigit()]

    def _count_patches(self, states: Tensor) -> int:
        if not self.is_image:
            return states.shape[1]
        config: Any = self.model.config
        sides = zip(read_pair(config.image_size), read_pair(config.patch_size), strict=True)
        rows, columns = (size // patch for size, patch in sides)
        return rows * columns


def _join_rotations(queries: OwnRotation | None, keys: OwnRotation | None) -> OwnRotation | None:
    """Return the rotation of an attention from that of its queries and of its keys.

    Raises:
        OptionError: They differ by more than a factor.
    """
    if queries is None and keys is None:
        return None
    if queries is None or keys is None or queries.channels != keys.channels:
        raise OptionError("model", "queries and keys rotate by different channels")
    if (queries.frequencies - keys.frequencies).abs().max() > SAME_ANGLE:
        raise OptionError("model", "queries and keys rotate by different angles")
    factor = (queries.factor * keys.factor) ** 0.5
    return OwnRotation(queries.channels, queries.frequencies, factor)


def _is_within(name: str, paths: Sequence[str]) -> bool:
    return any(name == path or name.startswith(f"{path}.") for path in paths)


@contextmanager
def zeroed(model: nn.Module, tables: Sequence[str]) -> Iterator[None]:
    """Make tables of positions 0 for a while."""
    with ExitStack() as stack:
        for path in tables:
            parent, _, name = path.rpartition(".")
            table = getattr(model.get_submodule(parent), name)
            if isinstance(table, nn.Module):
                handle = table.register_forward_hook(lambda module, args, output: 0 * output)
                stack.callback(handle.remove)
            else:
                stack.callback(table.data.copy_, table.detach().clone())
                table.data.zero_()
        yield


def find_structure(model: PreTrainedModel) -> Structure:
    """Find the structure of a model.

    Raises:
        OptionError: The model is not understood.
    """
    if not is_weightless(model):
        return StructureFinder(model).find()
    with stand_in_weights(model) as unknown:
        structure = StructureFinder(model).find()
    for rotary in structure.rotaries:
        if rotary.path in unknown:
            problem = f"{rotary.path} has frequencies that a model on the meta device lacks"
            raise OptionError("model", f"{problem}; load the weights before zoo.equip")
    return structure


def find_receivers(model: PreTrainedModel, paths: Sequence[str]) -> dict[str, str]:
    """Find the modules that receive the states after attention, before the MLP.

    These states are the sum of a layer's input and of the output of its attention, or of this
    output after a norm.

    Args:
        model: The model.
        paths: The paths of its attentions.

    Returns:
        The path of a module for that of each attention whose layer has one.
    """
    with ExitStack() as stack:
        if is_weightless(model):
            stack.enter_context(stand_in_weights(model))
        stack.enter_context(stirred(model))
        stack.enter_context(evaluating(model))
        searches = [ReceiverSearch(model, path) for path in paths]
        for search in searches:
            search.watch(stack)
        model(**make_inputs(model))
    return {one.attention: one.receiver for one in searches if one.receiver is not None}


class ReceiverSearch:
    """A search for the module of a layer that receives the states after attention.

    Attributes:
        receiver: Its path, once it is found.

    Args:
        model: The model.
        attention: The path of the attention.
    """

    def __init__(self, model: nn.Module, attention: str) -> None:
        parts = attention.split(".")
        number = next(number for number, part in enumerate(parts) if part.isdigit())
        self.model, self.attention = model, attention
        self.layer = ".".join(parts[: number + 1])
        self.receiver: str | None = None
        self._input: Tensor | None = None
        self._branches: list[Tensor] = []  # the output of the attention, and norms of it

    def watch(self, stack: ExitStack) -> None:
        """Watch the modules of the layer until a stack of contexts ends."""
        layer = self.model.get_submodule(self.layer)
        handle = layer.register_forward_pre_hook(self._enter_layer, with_kwargs=True)
        stack.callback(handle.remove)
        for name, module in layer.named_modules(prefix=self.layer):
            if name == self.layer or name.startswith(f"{self.attention}."):
                continue
            enter, leave = partial(self._enter, name), partial(self._leave, name)
            handle = module.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(handle.remove)
            handle = module.register_forward_hook(leave, with_kwargs=True)
            stack.callback(handle.remove)

    def _enter_layer(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        self._input = _find_states(args, kwargs)

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        x, before = _find_states(args, kwargs), self._input
        if self.receiver is not None or x is None or before is None:
            return
        if any(torch.equal(x, before + branch) for branch in self._branches):
            self.receiver = name

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        states, x = _find_states((output,), {}), _find_states(args, kwargs)
        is_of_branch = x is not None and any(x is branch for branch in self._branches)
        if states is not None and (name == self.attention or is_of_branch):
            self._branches.append(states)


def _find_states(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the first states [B, N, D] among arguments or outputs; None if there are none."""
    tensors = flatten((*args, *kwargs.values()))
    return next((one for one in tensors if one.dim() == 3 and one.is_floating_point()), None)


class Observer:
    """An observer of what modules receive and return in one pass.

    Attributes:
        rotaries: The rotary modules.
        tables: What they returned: cos and sin, or complex numbers.
        widths: Number of channels of the input of each module with states as input.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: path for path, module in model.named_modules()}
        self.rotaries: dict[str, RotaryModule] = {}
        self.widths: dict[nn.Module, int] = {}
        self.tables: list[Any] = []
        self._angles: list[Tensor] = []
        self._readers: list[nn.Module] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the modules of the model for a while."""
        with ExitStack() as stack:
            for module in self.names:
                before = module.register_forward_pre_hook(self._enter, with_kwargs=True)
                after = module.register_forward_hook(self._leave)
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield
        self._angles.clear()

    def find_readers(self, attentions: Sequence[nn.Module]) -> list[nn.Module]:
        """Return the modules below an attention that receive angles."""
        paths = [self.names[module] for module in attentions]
        return [
            module
            for module in dict.fromkeys(self._readers)
            if any(self.names[module].startswith(f"{path}.") for path in paths)
        ]

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = [*args, *kwargs.values()]
        tensors = [one for one in values if isinstance(one, Tensor)]
        states = [one for one in tensors if one.dim() == 3 and one.is_floating_point()]
        if states and module not in self.widths:
            self.widths[module] = states[0].shape[-1]
        flat = [one for value in values for one in flatten(value)]
        if any(one is angle for one in flat for angle in self._angles):
            self._readers.append(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        found = describe_angles(output)
        if found is None:
            return
        path = self.names[module]
        # A module that hands on the angles of another one makes none.
        if any(one is angle for one in flatten(output) for angle in self._angles):
            return
        kind, width = found
        known = self.rotaries.get(path, RotaryModule(path, kind, ()))
        self.rotaries[path] = replace(known, widths=tuple(sorted({*known.widths, width})))
        self.tables.append(output if kind != "sin, cos" else output[::-1])
        self._angles += flatten(output)


def flatten(value: Any) -> list[Tensor]:
    """Return the tensors in a value, in tuples and in mappings."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, tuple | list):
        return []
    return [tensor for entry in value for tensor in flatten(entry)]


def describe_angles(output: Any) -> tuple[str, int] | None:
    """Return the kind and the width of tables of angles; None for another output.

    cos^2 + sin^2 and the modulus of complex numbers do not depend on the position.
    """
    if isinstance(output, Tensor):
        if not output.is_complex() or output.dim() < 2:
            return None
        squares = output.abs()
        return ("complex", output.shape[-1]) if _is_constant(squares, squares.dtype) else None
    if not isinstance(output, tuple | list) or len(output) != 2:
        return None
    if not all(isinstance(one, Tensor) and one.is_floating_point() for one in output):
        return None
    first, second = output
    if first.shape != second.shape or first.dim() < 2 or first.shape[-2] < 2:
        return None
    if not _is_constant(first.float().square() + second.float().square(), first.dtype):
        return None
    start = [float(one.float().reshape(-1, one.shape[-1])[0].abs().max()) for one in output]
    return ("cos, sin" if start[0] > start[1] else "sin, cos"), first.shape[-1]


def _is_constant(squares: Tensor, dtype: torch.dtype) -> bool:
    """Return whether rows [..., N, channels] of numbers in a dtype are equal, and not 0."""
    rows = squares.reshape(-1, squares.shape[-1])
    tolerance = max(1e-4, 4 * torch.finfo(dtype).eps)
    spread = float((rows.amax(0) - rows.amin(0)).max())
    return len(rows) > 1 and spread < tolerance * float(rows.max()) and float(rows.min()) > 0.1


def _is_mixed(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether states [B, N, D] differ at other tokens than the changed one."""
    for left, right in zip(before, after, strict=True):
        for old, new in zip(flatten(left), flatten(right), strict=True):
            if old.dim() != 3 or not old.is_floating_point() or old.shape[1] != LENGTH:
                continue
            difference = (old - new).abs().amax((0, 2))
            difference[CHANGED_TOKEN] = 0
            if difference.max() > MIXING * old.abs().max().clamp(min=1e-30):
                return True
    return False


@contextmanager
def neutralized(model: nn.Module, rotaries: Sequence[RotaryModule]) -> Iterator[None]:
    """Make rotary modules return angles of 0 for a while."""
    with ExitStack() as stack:
        for rotary in rotaries:
            handle = model.get_submodule(rotary.path).register_forward_hook(
                lambda module, args, output, rotary=rotary: rotary.neutralize(output)
            )
            stack.callback(handle.remove)
        yield


def make_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """Return a few texts, or images, on the device of the model's weights."""
    example = next(model.parameters())
    # A model without weights runs on the CPU; see `stand_in_weights`.
    example = torch.empty(0, dtype=example.dtype, device="cpu") if example.is_meta else example
    config: Any = model.config
    draw = torch.Generator("cpu").manual_seed(0)
    if model.main_input_name == "pixel_values":
        height, width = read_pair(config.image_size)
        pixels = torch.randn(2, config.num_channels, height, width, generator=draw, device="cpu")
        return {"pixel_values": pixels.to(example)}
    if model.main_input_name == "input_features" and hasattr(config, "max_source_positions"):
        # Encoders of speech take spectrograms of one length, two frames for each token.
        frames = 2 * config.max_source_positions
        sounds = torch.randn(2, config.num_mel_bins, frames, generator=draw, device="cpu")
        return {"input_features": sounds.to(example)}
    if model.main_input_name != "input_ids":
        problem = f"{type(model).__name__} reads {model.main_input_name}, no text and no images"
        raise OptionError("model", f"{problem}; see zoo.Attention for a layer in your own model")
    vocabulary = config.get_text_config().vocab_size
    ids = torch.randint(
        min(3, vocabulary - 1), vocabulary, (2, LENGTH), generator=draw, device="cpu"
    )
    inputs: dict[str, Any] = {"input_ids": ids.to(example.device)}
    if accepts(model, "use_cache"):
        inputs["use_cache"] = False
    return inputs


def accepts(model: nn.Module, name: str) -> bool:
    """Return whether a model takes an argument by a name, or hands on all that it does not know."""
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def read_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width of a size of an image or a patch."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width
