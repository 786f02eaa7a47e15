"""An adapter for models of Hugging Face transformers: their layers, caches and positions.

The attention of every supported model uses transformers' AttentionInterface. An equipped model
selects the implementation "zoo", and hooks on its layers pass tokens and states to it. The tokens
of cached keys are stored in the layers of the cache, so that every operation that reorders,
repeats, selects or crops the cache also applies to them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer, StaticSlidingWindowLayer
from transformers.masking_utils import find_packed_sequence_indices, sdpa_mask

from zoo.attention.chain import make_factory
from zoo.attention.encoding import Dims, Encoding, EncodingFactory
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens, select_rows
from zoo.errors import OptionError
from zoo.integrations.attention_windows import is_chunked_kind, is_windowed_kind
from zoo.integrations.equipment import (
    CHANGED,
    NAME,
    Equipment,
    ForwardPass,
    Layer,
    Surgery,
    TurnedChannels,
    find_active,
    spread_axes,
)
from zoo.integrations.evaluating import evaluating, stirred
from zoo.integrations.given_masks import find_documents, follows_mask, read_visible
from zoo.integrations.guards import guard_classes
from zoo.integrations.own_rotation import (
    MeasuredRope,
    OwnPositions,
    OwnRotation,
    describe_choice,
    fix_length,
    keep_rotary,
)
from zoo.integrations.proof import PAST_WINDOWS, AttentionRecord, EqualityLaw, Prover, list_laws
from zoo.integrations.rope_parameters import FIXED_LENGTH, read_kind
from zoo.integrations.structure import (
    AXES,
    RotaryModule,
    Structure,
    accepts,
    find_receivers,
    find_structure,
    flatten,
    make_inputs,
    read_pair,
)
from zoo.integrations.weightless import is_weightless
from zoo.options import Choice
from zoo.suggestions import join_words
from zoo.utils import raise_if_out_of_memory

IMPLEMENTATION = "zoo"
CACHE_NAMES = ("cache", "past_key_values", "layer_past")
PROBED = (0, 1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 39)  # positions of the tokens that are compared
PASS = "zoo_pass"  # the keyword argument that hands a ForwardPass to layers
TEMPERATURE = "attn_temperature_tuning"  # the attribute by which an attention scales its queries
UNREAD = {
    PASS,
    # The mask of a layer has its window.
    "sliding_window",
    # The base model has read them: positions, caches, losses, outputs.
    "position_ids",
    "token_type_ids",
    "use_cache",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    # For kernels of flash attention; position_ids say the same.
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "deterministic",
}
"""Arguments of an attention in transformers that change nothing which zoo computes."""


class TransformersAdapter:
    """The adapter of a model of transformers.

    Args:
        model: The model.
        observes: Whether its positions stay, so that nobody needs to understand them.

    Raises:
        OptionError: The structure of the model is not understood, or it has a feature that
            encodings do not support.
    """

    def __init__(self, model: PreTrainedModel, *, observes: bool = False) -> None:
        self.model, self.config = model, model.config
        _check_cross_attention(model)
        self.structure = find_structure(model)
        if self.structure.refusal and not observes:
            raise OptionError("model", self.structure.refusal)
        self.base: Any = model.get_submodule(self.structure.base)
        self.attentions: list[Any] = [
            model.get_submodule(found.path) for found in self.structure.attentions
        ]
        self.last_position: int | None = None  # of the texts that the encodings are made for
        self.unproved: tuple[str, ...] = ()  # laws that the model itself cannot follow, and why
        # by attention: the module that receives the states after it
        self.receivers: Mapping[nn.Module, nn.Module] = {}
        self.unreached: tuple[int, ...] = ()  # layers with a window that no text of the proof fills
        if getattr(self.config, "is_causal", None) and not self._attends_causally():
            problem = "config.is_causal is True, which its masks for padding do not follow"
            raise OptionError("model", f"{problem}; set is_decoder, or leave is_causal out")

    @property
    def causal(self) -> bool:
        """True if the model has a causal mask."""
        return self.structure.is_causal

    def _attends_causally(self) -> bool:
        return bool(getattr(self.attentions[0], "is_causal", False))

    @property
    def turned(self) -> tuple[TurnedChannels | None, ...]:
        """For each layer, the channels that the model rotates."""
        return tuple(
            None if found.rotation is None else found.rotation.channels
            for found in self.structure.attentions
        )

    @property
    def without_position(self) -> tuple[int, ...]:
        """Indices of the layers that have no positions in the original model (NoPE layers)."""
        # A model without a rotation has no such layers, whatever else tells it the order.
        if not self.structure.rotaries or self.structure.keeps_rotation or self.structure.is_image:
            return ()
        return tuple(number for number, turned in enumerate(self.turned) if turned is None)

    @property
    def windowed(self) -> tuple[bool, ...]:
        """For each layer, whether it has a window; empty if no layer has one."""
        kinds = getattr(self.base.config, "layer_types", None)
        found = []
        for attention in self.structure.attentions:
            layer = read_layer_number(attention.path)
            if kinds and layer < len(kinds):
                found.append(is_windowed_kind(kinds[layer]) or is_chunked_kind(kinds[layer]))
            else:
                found.append(attention.is_windowed)
        return tuple(found) if any(found) else ()

    @property
    def adds_positions(self) -> bool:
        """True if the model has positions that single layers cannot keep."""
        found = self.structure
        return bool(found.tables) or found.is_image or found.keeps_rotation

    @property
    def keeps_rotation(self) -> bool:
        """True if the model has a rotation that no encoding equals, and that may stay in it."""
        return self.structure.keeps_rotation

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of the equipment in this model, for a report."""
        unproved = tuple(f"not proved, since the model fails: {one}" for one in self.unproved)
        if self.unreached:
            layers = join_words(map(str, self.unreached))
            problem = (
                f"not proved: no text of the proof is longer than the window of layers {layers}"
            )
            unproved += (problem,)
        if not self.structure.mixers:
            return unproved
        kinds = Counter(self.structure.mixers.values())
        names = join_words(f"{count} {name}" for name, count in kinds.items())
        return (
            f"left as they are, and they know the order of tokens: {names}",
            "such layers may let packed texts see each other; pass one text in a row",
            *unproved,
        )

    @property
    def position_axes(self) -> int:
        """Number of axes of the positions that the model takes."""
        if self.structure.is_image:
            return 2
        rotations = (found.rotation for found in self.structure.attentions)
        return AXES if any(one is not None and one.axes for one in rotations) else 1

    def find_sizes(self, length: int | tuple[int, ...] | None) -> tuple[Dims, ...]:
        """Return the sizes of each layer, with the training length as the default length."""
        config = self.base.config
        if self.structure.is_image:
            sides = zip(read_pair(config.image_size), read_pair(config.patch_size), strict=True)
            axes, length = 2, length or tuple(size // patch for size, patch in sides)
        else:
            axes, length = 1, length or getattr(config, "max_position_embeddings", None)
        return tuple(
            Dims(
                found.dim,
                found.heads,
                axes,
                length=length,
                layer=number,
                depth=len(self.attentions),
                kv_heads=found.kv_heads,
                head_dim=found.head_dim,
            )
            for number, found in enumerate(self.structure.attentions)
        )

    def find_own(self, length: int | tuple[int, ...] | None) -> OwnPositions | None:
        """Return the model's own rotations as an encoding; None if it has none.

        Args:
            length: Length of the texts, which frequencies that follow it are fixed for.

        Raises:
            OptionError: The frequencies follow the length of texts in a way that `rope` does not.
        """
        made = [self._make_own(rotation, length) for rotation in self._list_rotations()]
        if not made:
            return None
        description = join_words(dict.fromkeys(description for _, description in made), "or")
        return OwnPositions(self._join_layers([make for make, _ in made]), description)

    def _join_layers(self, factories: Sequence[EncodingFactory]) -> EncodingFactory:
        """Return a factory of encodings from that of each layer."""
        rotations = self._list_rotations()
        # If all layers have the same rotation, they share one module, which the first call makes.
        is_shared = all(rotation.equals(rotations[0]) for rotation in rotations)

        def make(dims: Dims) -> Encoding:
            encoding = factories[dims.layer](dims)
            encoding.shared = is_shared
            return encoding

        return make

    def _make_own(
        self, rotation: OwnRotation, length: int | tuple[int, ...] | None
    ) -> tuple[EncodingFactory, str]:
        """Return a factory of one rotation, and its description."""
        config = self.base.config
        entries = getattr(config, "rope_parameters", None) or {}
        # Kinds of layers may have separate entries.
        nested = [one for one in entries.values() if isinstance(one, Mapping)]
        original = int(getattr(config, "max_position_embeddings", None) or 0)
        width = rotation.channels.width
        for parameters in nested or [entries]:
            options = rotation.translate(parameters, original) if original else None
            if options is not None:
                options = fix_length(options, length)
                choice = self._name_own(rotation, options)
                if choice is None:
                    break
                return _make_narrow(make_factory(choice), width), describe_choice(choice)
            if read_kind(parameters) in FIXED_LENGTH and not nested:
                named = ", ".join(f"{key}={value}" for key, value in parameters.items())
                problem = "the model's own frequencies follow the length of texts as rope cannot"
                remedy = "give rope a base, as in {name: rope, base: 10000.0}"
                raise OptionError("encoding", f"{problem} ({named}); {remedy}")
        return (
            partial(MeasuredRope.in_layer, rotation=rotation),
            "rope(the model's own frequencies)",
        )

    def _name_own(self, rotation: OwnRotation, options: Mapping[str, Any]) -> Choice | None:
        """Return `rope`, or `mrope` by the axes of pairs; None if it has no such layout."""
        if not rotation.axes:
            return Choice("rope", options)
        counts = [rotation.axes.count(axis) for axis in range(AXES)]
        for layout in ("interleaved", "blocks"):
            choice = Choice("mrope", {"sections": counts, "layout": layout, **options})
            try:
                made: Any = make_factory(choice)(Dims(rotation.channels.width, 1, AXES))
            except OptionError:
                continue
            waves = made.wave_vectors(torch.zeros(1, dtype=torch.float64))[:, 0]
            if waves.argmax(0).tolist() == [*rotation.axes]:
                return choice
        return None

    def install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Put the encodings into the model, and describe what was removed from it.

        Raises:
            OptionError: The model would not compute what it did with its own positions.
        """
        self.receivers = self._find_receivers(equipment)
        # A model without weights computes nothing that could be compared.
        if is_weightless(self.model):
            return self._install(equipment, surgery)
        if not equipment.equals_own:
            with self._with_own_positions() as (own, trial):
                self._prove(own, trial)
            self.last_position = _find_last_position(equipment)
            removed = self._install(equipment, surgery)
            # An encoding may refuse soft caps or sinks, which the model passes to each call.
            self._run_once()
            return removed
        return self._prove(equipment, surgery)

    def _find_receivers(self, equipment: Equipment) -> dict[nn.Module, nn.Module]:
        """Find what receives the states after attention, where encodings carry data on.

        Raises:
            OptionError: A layer has no such module, or is not one of attention with positions.
        """
        if not equipment.carriers:
            return {}
        name = join_words(equipment.carriers)
        if self.without_position or self.structure.mixers:
            problem = f"{name} carries data from layer to layer, so that all layers need it"
            others = join_words((*map(str, self.without_position), *self.structure.mixers), most=3)
            raise OptionError("encoding", f"{problem}, and {others} of this model cannot have it")
        paths = [found.path for found in self.structure.attentions]
        receivers = find_receivers(self.model, paths)
        # Nothing reads what the last layer would hand on.
        for path in paths[:-1]:
            if path not in receivers:
                problem = f"{name} reads the states after attention, which no module behind {path}"
                remedy = "receives, as where attention and MLP are parallel; choose another one"
                raise OptionError("encoding", f"{problem} {remedy}")
        return {
            self.model.get_submodule(path): self.model.get_submodule(receivers[path])
            for path in paths[:-1]
        }

    @contextmanager
    def _with_own_positions(self) -> Iterator[tuple[Equipment, Surgery]]:
        """Make an equipment with the model's own positions, and undo its installation."""
        sizes, rotations = self.find_sizes(None), self._list_rotations()
        sizes = spread_axes(sizes, self.position_axes)
        measured = [partial(MeasuredRope.in_layer, rotation=one) for one in rotations]
        factories = {"rope": self._join_layers(measured)} if rotations else {}
        example = next(self.model.parameters())
        equipment = Equipment(
            sizes[0],
            factories,
            causal=self.causal,
            turned=self.turned,
            sizes=sizes,
            without_position=self.without_position,
            equals_own=True,
            keeps_positions=not rotations,
        )
        equipment.to(device=example.device, dtype=example.dtype)
        surgery = Surgery()
        chosen = self.model.get_submodule(NAME)
        try:
            self.model.add_module(NAME, equipment)
            yield equipment, surgery
        finally:
            surgery.undo()
            self.model.add_module(NAME, chosen)

    def _list_rotations(self) -> list[OwnRotation]:
        """List the rotation of each layer; a layer without one has that of another."""
        rotations = [found.rotation for found in self.structure.attentions]
        first = next((rotation for rotation in rotations if rotation is not None), None)
        return [] if first is None else [rotation or first for rotation in rotations]

    def _prove(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Install the model's own positions, and compare what the model computes, law by law.

        Raises:
            OptionError: An attention differs by more than rounding.
        """
        self.last_position = _find_last_position(equipment)
        prover = Prover(self.model, self.attentions, is_causal=self.causal)
        has_axes = self.position_axes == AXES
        laws = list_laws(self.model, self._make_inputs(), self.causal, has_axes=has_axes)
        if self.last_position is not None:
            # Frequencies that are made for one length equal the model's own in such a text alone.
            laws = laws[:1]
        with stirred(self.model), evaluating(self.model), self._keep_rotaries():
            records, unproved = {}, []
            for law in laws:
                try:
                    records[law] = prover.record(law)
                # A law that the model itself cannot follow is not asked.
                except Exception as error:
                    raise_if_out_of_memory(error)
                    sentence = f"law {law.name}: {_describe_failure(error)}"
                    if law is laws[0]:
                        raise OptionError("model", f"the model fails: {sentence}") from error
                    unproved.append(sentence)
            self.unproved = tuple(unproved)
            self.unreached = self._list_unreached(records)
        removed = self._install(equipment, surgery)
        for law, own in records.items():
            with stirred(self.model), evaluating(self.model), self._keep_rotaries():
                try:
                    found = prover.find_difference(own, prover.record(law, own.results))
                except Exception as error:
                    raise_if_out_of_memory(error)
                    place = f"law {law.name}, the attention of layer {prover.layer}"
                    raise OptionError("model", f"{place}: {_describe_failure(error)}") from error
            if found is not None:
                number, difference, bound = found
                problem = f"law {law.name}: the attention of layer {number} would differ by"
                remedy = "its configuration or its code has a feature that zoo does not know"
                reason = (
                    f"{difference:.1e} from the model's own, and by rounding alone by {bound:.1e}"
                )
                raise OptionError("model", f"{problem} {reason}: {remedy}")
        return removed

    def _list_unreached(self, records: Mapping[EqualityLaw, AttentionRecord]) -> tuple[int, ...]:
        """List the layers with a window that hid no token in the laws that make it narrow."""
        limited = {
            module
            for law, record in records.items()
            if law.name in PAST_WINDOWS
            for module in record.limited
        }
        return tuple(
            number
            for number, is_windowed in enumerate(self.windowed)
            if is_windowed and self.attentions[number] not in limited
        )

    def _follows_length(self) -> bool:
        """Return whether frequencies of the model follow the length of the sequence."""
        entries = getattr(self.base.config, "rope_parameters", None) or {}
        nested = [one for one in entries.values() if isinstance(one, Mapping)]
        return any(read_kind(one) in FIXED_LENGTH for one in nested or [entries])

    def _run_once(self) -> None:
        with evaluating(self.model), self._keep_rotaries():
            self.model(**self._make_inputs())

    def _install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        removed = []
        if not equipment.keeps_positions:
            removed = self._remove_positions(surgery, keeps_bias=equipment.equals_own)
        self._replace_config(surgery)
        hooks = PassHooks(equipment, self.model, self.structure, self.receivers)
        surgery.hook(self.base, hooks.start_pass)
        first = self.model.get_submodule(self.structure.first)
        surgery.hook(first, hooks.begin)
        for number, attention in enumerate(self.attentions):
            surgery.forget(attention, "zoo_layer")
            surgery.hook(attention, partial(hooks.enter_layer, number))
            surgery.hook_output(attention, hooks.leave_layer)
        for receiver in self.receivers.values():
            surgery.forget(receiver, "zoo_layer")
            surgery.hook(receiver, hooks.carry)
        if not equipment.equals_own:
            self._take_over_temperature(equipment, surgery)
        guard_classes()
        return removed

    def _take_over_temperature(self, equipment: Equipment, surgery: Surgery) -> None:
        """Scale the queries of layers by zoo where the model scales them (Llama 4).

        The model counts the rows of a pass, with padding; zoo counts positions.
        """
        for number, attention in enumerate(self.attentions):
            if getattr(attention, TEMPERATURE, False) and not attention.use_rope:
                surgery.set_attribute(attention, TEMPERATURE, value=False)
                equipment.temperatures[number] = Temperature(
                    floor=float(attention.floor_scale),
                    scale=float(attention.attn_scale),
                    offset=1.0,
                )

    @contextmanager
    def _keep_rotaries(self) -> Iterator[None]:
        with ExitStack() as stack:
            for rotary in self.structure.rotaries:
                stack.enter_context(keep_rotary(self.model.get_submodule(rotary.path)))
            yield

    def _make_inputs(self) -> dict[str, Any]:
        """Return a few tokens, or an image."""
        inputs = make_inputs(self.model)
        if "input_ids" not in inputs:
            return inputs
        places: Sequence[int] = PROBED
        if self.last_position is not None:
            # The last position tells the model the length that the encodings are made for.
            places = [*(one for one in PROBED if one < self.last_position), self.last_position]
        elif self._follows_length():
            places = range(len(PROBED))
        ids = inputs["input_ids"][:1, : len(places)]
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.structure.rotaries and accepts(self.model, "position_ids"):
            inputs["position_ids"] = torch.tensor([places], device=ids.device)
        return inputs

    def _list_configs(self) -> list[Any]:
        """List the configurations that select the attention of the equipped layers."""
        modules = [self.base, *self.attentions]
        configs = [getattr(module, "config", None) for module in modules]
        return [*{id(config): config for config in configs if config is not None}.values()]

    def _replace_config(self, surgery: Surgery) -> None:
        """Select the implementation in copies of configurations, which models may share."""
        for original in self._list_configs():
            self._replace_one_config(original, surgery)

    def _replace_one_config(self, original: Any, surgery: Surgery) -> None:
        config = copy(original)
        before = dict(vars(config))
        # The attribute, and not the property, which would also change the parts of the original.
        config._attn_implementation_internal = IMPLEMENTATION
        modules = [one for one in self.model.modules() if vars(one).get("config") is original]

        def select() -> None:
            for module in modules:
                module.config = config

        # Edits that were made while the model was equipped stay, in the copy.
        def restore() -> None:
            config._attn_implementation_internal = original._attn_implementation_internal
            is_edited = vars(config) != before
            for module in modules:
                if module.config is config and not is_edited:
                    module.config = original

        surgery.call(select, undo=restore)

    def _remove_positions(self, surgery: Surgery, *, keeps_bias: bool) -> list[str]:
        removed = []
        for rotary in self.structure.rotaries:
            module = self.model.get_submodule(rotary.path)
            surgery.hook_output(module, NeutralAngles(rotary, bool(self.structure.readers)))
            removed.append(f"{rotary.path}: rotates nothing")
        for path in self.structure.readers:
            surgery.hook(self.model.get_submodule(path), restore_angles)
        for attention in self.attentions:
            if self.structure.rotaries and "forward" not in vars(attention):
                _leave_out_rotation(attention, surgery)
        for path in self.structure.tables:
            surgery.zero_table(self.model, path)
            removed.append(f"{path}: set to 0 and frozen")
        if any(found.has_bias for found in self.structure.attentions) and not keeps_bias:
            removed.append("position_bias of the attentions: left out")
        return removed


def _make_narrow(make: EncodingFactory, width: int) -> EncodingFactory:
    """Return a factory of encodings for the first channels of a head."""
    return lambda dims: make(replace(dims, head_dim=width))


class NeutralAngles:
    """A forward hook by which a rotary module returns angles of 0.

    Args:
        rotary: The module.
        keeps_own: Whether the tables remember the model's own, for readers of the angles that are
            no attention.
    """

    def __init__(self, rotary: RotaryModule, keeps_own: bool) -> None:
        self.rotary, self.keeps_own = rotary, keeps_own

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Return tables of the same form that rotate nothing."""
        neutral = self.rotary.neutralize(output)
        if self.keeps_own:
            for table, own in zip(flatten(neutral), flatten(output), strict=True):
                table.zoo_own = own  # type: ignore[attr-defined]
        return neutral


def restore_angles(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Hand the model's own angles to a module that reads them for something else."""

    def restore(value: Any) -> Any:
        if isinstance(value, Tensor):
            return getattr(value, "zoo_own", value)
        if isinstance(value, tuple | list):
            return type(value)(map(restore, value))
        return value

    return restore(args), {name: restore(value) for name, value in kwargs.items()}


class PassHooks:
    """Hooks that pass tokens from layer to layer.

    Args:
        equipment: The encodings.
        model: The equipped model.
        structure: The parts of the model.
        receivers: By attention, the module that receives the states after it, where encodings
            carry data from layer to layer.
    """

    def __init__(
        self,
        equipment: Equipment,
        model: PreTrainedModel,
        structure: Structure,
        receivers: Mapping[nn.Module, nn.Module],
    ) -> None:
        base = model.get_submodule(structure.base)
        config: Any = base.config
        self._parts = (model, equipment)
        self.is_image, self.hands_on = structure.is_image, structure.hands_on
        self.patch_size = read_pair(config.patch_size) if self.is_image else (1, 1)
        self.latents = {
            number for number, found in enumerate(structure.attentions) if found.caches_latents
        }
        self.current, self.receivers = ForwardPass(), receivers
        self._model_names = _argument_names(base)
        self._names = _argument_names(model.get_submodule(structure.first))

    @property
    def equipment(self) -> Equipment:
        """The encodings, or the copy of them that an adapter has."""
        return find_active(*self._parts)

    def _check_adapters(self, equipment: Equipment) -> None:
        """Check that adapters of peft are saved together with the encodings that train beside them.

        Raises:
            OptionError: The encodings train, but no adapter has them.
        """
        model, _ = self._parts
        # A recipe's checkpoint has all weights; peft marks the model that it put adapters into.
        if "peft_config" not in vars(model) or not equipment.arguments:
            return
        is_kept = not isinstance(model.get_submodule(NAME), Equipment)
        if not is_kept and any(one.requires_grad for one in equipment.parameters()):
            problem = "peft would save its adapters without the encodings that train beside them"
            remedy = f'write modules_to_save=["{NAME}"] in its configuration'
            raise OptionError("modules_to_save", f"{problem}; {remedy}")

    def start_pass(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Start a forward pass. It is called before the base model."""
        # Layers receive the pass as a keyword argument, so that checkpointing recomputes with it.
        self.current = ForwardPass()
        chosen = model.config._attn_implementation  # type: ignore[union-attr]
        if chosen != IMPLEMENTATION:
            problem = f"attn_implementation {chosen!r} computes no encodings"
            remedy = f"set {IMPLEMENTATION!r} again, or call zoo.unequip first"
            raise OptionError("attn_implementation", f"{problem}; {remedy}")
        self._check_adapters(self.equipment)
        given = {**dict(zip(self._model_names, args, strict=False)), **kwargs}
        self._check_masks(given)
        # transformers tells packed texts apart only where no mask is given.
        self.current.is_packed = given.get("attention_mask") is None
        self.current.positions = given.get("position_ids")
        self.current.mask = given.get("attention_mask")
        if self.is_image:
            pixels = args[0] if args else kwargs["pixel_values"]
            height, width = pixels.shape[-2:]
            rows, columns = self.patch_size
            self.current.grid_size = (height // rows, width // columns)
        return args, {**kwargs, PASS: self.current} if self.hands_on else kwargs

    def _check_masks(self, given: Mapping[str, Any]) -> None:
        """Check the masks that the caller of the model gave.

        Args:
            given: The arguments of the model by name.

        Raises:
            OptionError: A mask is not one of visible pairs, or the encodings cannot follow it.
        """
        equipment = self.equipment
        mask = given.get("attention_mask")
        cache = next((given[name] for name in CACHE_NAMES if given.get(name) is not None), None)
        # Models with several kinds of layers accept a mask for each kind.
        for one in mask.values() if isinstance(mask, Mapping) else [mask]:
            if one is None or (isinstance(one, Tensor) and one.dim() == 2):
                if one is not None and cache is not None:
                    _check_hidden(one, cache, given)
                continue
            seen = 0 if cache is None or one.shape[2] == 1 else int(cache.get_seq_length())
            self.current.has_whole_mask |= follows_mask(one, equipment, seen)
            self.current.has_mask_of_pairs = True

    def begin(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make tokens, and apply encodings to the input. It is called before the first layer."""
        x, put = take_states(args, kwargs)
        equipment = self.equipment
        positions = document = None
        if not self.is_image:
            given = {**dict(zip(self._names, args, strict=False)), **kwargs}
            positions, document = self._locate(x, given, kwargs)
        return put(equipment.begin(self._find_pass(kwargs), x, positions, document))

    def enter_layer(
        self, number: int, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Prepare an attention. It is called before the attention, with its input and cache."""
        x, _ = take_states(args, kwargs)
        layer = self.equipment.enter_layer(self._find_pass(kwargs), number, x)
        layer.caches_latents = number in self.latents
        # Setting an attribute of an nn.Module is slow.
        vars(attention)["zoo_layer"] = layer

        def view(value: Any) -> Any:
            return CacheView(value, layer) if isinstance(value, Cache) else value

        return tuple(map(view, args)), {name: view(value) for name, value in kwargs.items()}

    def leave_layer(self, attention: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forget what a pass leaves behind, which would hinder copies of the model."""
        layer, vars(attention)["zoo_layer"] = vars(attention)["zoo_layer"], None
        if attention in self.receivers:
            vars(self.receivers[attention])["zoo_layer"] = layer

    def carry(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hand on what encodings carry, before the states after attention are read."""
        layer = vars(module).pop("zoo_layer", None)
        if layer is not None:
            self.equipment.carry(layer, take_states(args, kwargs)[0])
        return args, kwargs

    def _locate(
        self, x: Tensor, given: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Find the positions int [1|B, N] and documents int [1|B, N] of the tokens of each text.

        Args:
            x: States [B, N, D].
            given: The arguments of the first layer by name.
            kwargs: Its keyword arguments.
        """
        equipment = self.equipment
        current, count = self._find_pass(kwargs), x.shape[1]
        mask = given.get("attention_mask")
        cache = next((value for value in given.values() if isinstance(value, Cache)), None)
        positions = given.get("position_ids")
        if positions is None or equipment.dims.axes == AXES:
            positions = current.positions
        places = None
        if isinstance(positions, Tensor) and positions.dim() == 3:
            positions, places = split_axes(positions, equipment.dims.axes)

        # Layers that are no attention receive no mask of pairs: that of the model says the same.
        if not isinstance(mask, Tensor) or mask.dim() != 4:
            mask = current.mask if isinstance(current.mask, Tensor) else None
        document = None
        if mask is not None and (equipment.needs_documents or positions is None):
            visible = mask.bool()[:, None, None] if mask.dim() == 2 else read_visible(mask)
            end = mask.shape[-1]
            # A static cache has rows that are not in use yet, and in a window never more than it.
            if cache is not None and _is_static(cache) and mask.dim() == 4:
                end = min(end, int(cache.get_seq_length()) + count)
            # Whoever is masked is hidden from all queries.
            document = visible[:, 0, :, end - count : end].any(1).long() - 1
            if current.is_packed and positions is not None and cache is None:
                packed = find_packed_sequence_indices(positions)
                document = document if packed is None else torch.where(document < 0, -1, packed)
            elif current.has_mask_of_pairs and equipment.causal:
                document = find_documents(visible[:, 0, :, :end], equipment, cache is not None)
            # The model counts masked tokens; encodings do not, unless they stand for its own.
            if positions is None and not equipment.equals_own:
                seen = visible[:, 0, -1, :end] if cache is not None else document >= 0
                positions = (seen.long().cumsum(-1) - 1).clamp(min=0)[:, -count:]
        if positions is None:
            start = 0 if cache is None else int(cache.get_seq_length())
            positions = torch.arange(start, start + count, device=x.device)[None]
        positions = positions if places is None else places
        return positions, document if equipment.needs_documents else None

    def _find_pass(self, kwargs: Mapping[str, Any]) -> ForwardPass:
        found = kwargs.get(PASS)
        if found is not None:
            return found
        # Without it, a layer that the backward pass recomputes may belong to an earlier pass.
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() >= 0:
            problem = "the layers of this model do not hand on what they need to be recomputed"
            raise OptionError("model", f"{problem}; train it without gradient checkpointing")
        return self.current


def split_axes(positions: Tensor, axes: int) -> tuple[Tensor, Tensor | None]:
    """Split positions of time, height and width, as models of texts with pictures take them.

    Args:
        positions: Positions int [3, B, N], or [4, B, N] with those of the text first.
        axes: Number of axes that the encodings read.

    Returns:
        Positions of the text int [B, N], or those of time; and for three axes all, int [B, N, 3].

    Raises:
        OptionError: The encodings read one position, and tokens have different ones.
    """
    *text, places = positions.split((len(positions) - AXES, AXES))
    first = text[0][0] if len(positions) > AXES else places[0]
    if axes == AXES:
        return first, places.permute(1, 2, 0)
    if not positions.is_meta and bool((places != places[:1]).any()):
        problem = "tokens have different positions of time, height and width, and the encoding"
        raise OptionError("position_ids", f"{problem} reads one; equip the model with mrope or own")
    return places[0], None


def take_states(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Find the states [B, N, D] among the arguments of a layer.

    Returns:
        The states, and a function that returns the arguments with others in their place.
    """

    def is_states(value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point()

    number = next((number for number, value in enumerate(args) if is_states(value)), None)
    if number is not None:
        return args[number], lambda x: ((*args[:number], x, *args[number + 1 :]), kwargs)
    name = next((name for name, value in kwargs.items() if is_states(value)), None)
    if name is not None:
        return kwargs[name], lambda x: (args, {**kwargs, name: x})
    # Some models have several streams of states [B, N, streams, D], with equal ones at the input.
    streams, *rest = args
    first = streams[:, :, 0]
    return first, lambda x: (
        (streams if x is first else streams + (x - first)[:, :, None], *rest),
        kwargs,
    )


def _is_static(cache: Cache) -> bool:
    """Return whether a cache has rows for tokens to come."""
    return any(isinstance(one, StaticLayer) for one in cache.layers)


def _check_hidden(mask: Tensor, cache: Any, given: Mapping[str, Any]) -> None:
    """Check that a mask [B, M] hides no cached token whose data later tokens have summed.

    Args:
        mask: 0 for masked tokens; the last of them are new.
        cache: The cache, with the tokens of its keys.
        given: The arguments of the model by name.

    Raises:
        OptionError: A token was visible when it was cached, and is masked now.
    """
    layer = next((one for one in cache.layers if "zoo_tokens" in vars(one)), None)
    stored = getattr(layer, "zoo_tokens", None)
    # Keys without data of their own are only left out of the attention, which the mask does.
    if layer is None or stored is None or not stored.per_token:
        return
    inputs = given.get("input_ids")
    new = given["inputs_embeds"] if inputs is None else inputs
    visible = mask[:, : mask.shape[1] - new.shape[1]].bool()
    # Tokens that have no keys any more may have moved to other rows.
    count = min(len(stored), visible.shape[1], layer.keys.shape[2])
    hidden = ~visible[:, visible.shape[1] - count :]
    if stored.document is not None:
        hidden = hidden & (stored.document[:, len(stored) - count :] >= 0)
    if hidden.any():
        problem = "the mask hides a token that was visible when it was cached"
        remedy = "later tokens have taken its data in; mask it from the start, or fill a new cache"
        raise OptionError("attention_mask", f"{problem}; {remedy}")


def _find_last_position(equipment: Equipment) -> int | None:
    """Return the last position of the texts that encodings are made for; None for any texts."""
    lengths = [length for chain in equipment.chains if (length := chain.text_length)]
    return min(lengths) - 1 if lengths else None


def _argument_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments of a module's forward."""
    return tuple(inspect.signature(module.forward).parameters)


def attend_equipped(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    output_attentions: bool | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of an equipped model, for transformers' AttentionInterface.

    Returns:
        The output [B, N, H, V], and the weights [B, H, N, M] if they were requested.

    Raises:
        OptionError: `is_causal` is not what it was when the model was equipped, or there is an
            argument that zoo does not read.
    """
    layer = vars(module).get("zoo_layer")
    if layer is None:
        if CHANGED in vars(module):
            problem = "an attention of an equipped model was called without its hooks"
            raise OptionError("model", f"{problem}; call the module, and not its forward")
        return _attend_plainly(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    for name, given in kwargs.items():
        if given is not None and name not in UNREAD:
            problem = f"the attention of an equipped model does not read {name}"
            raise OptionError(name, f"{problem}; leave it out, or call zoo.unequip first")
    if is_causal is not None and is_causal != layer.causal:
        problem = f"the model was equipped with is_causal={layer.causal}"
        remedy = "call zoo.unequip, change its configuration, and equip it again"
        raise OptionError("is_causal", f"{problem}; {remedy}")
    mask = None if attention_mask is None else read_visible(attention_mask)
    if indices is not None:
        mask = _choose_keys(indices, mask, query, key)
    s_aux = sinks if s_aux is None else s_aux
    if s_aux is not None and s_aux.dim() != 1:
        problem = "the sinks of this model depend on the query, which encodings do not know"
        raise OptionError("model", problem)
    # Another encoding takes the place of what the model adds for positions.
    bias = position_bias if layer.keeps_bias else None
    if output_attentions is None:
        output_attentions = getattr(module.config, "output_attentions", False)
    if not output_attentions:
        out = layer.attend(
            query,
            key,
            value,
            scale=scaling,
            mask=mask,
            dropout=dropout,
            softcap=softcap,
            sinks=s_aux,
            bias=bias,
        )
        return out.transpose(1, 2).contiguous(), None
    call = layer.describe(
        query,
        key,
        value,
        scale=scaling,
        mask=mask,
        dropout=dropout,
        softcap=softcap,
        sinks=s_aux,
        bias=bias,
    )
    # Keys that left a sliding window may still be in the call, with weights of 0.
    weights = layer.weights(call)[..., -key.shape[2] :]
    return layer.attend_call(call).transpose(1, 2).contiguous(), weights


# A model that was unpickled needs them too, so they do not wait for the first `zoo.equip`.
AttentionInterface.register(IMPLEMENTATION, attend_equipped)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def _attend_plainly(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Compute a call that is no attention over tokens, as transformers would."""
    attend = AttentionInterface._global_mapping["sdpa"]
    return attend(module, query, key, value, mask, dropout=dropout, scaling=scaling, **options)


def _choose_keys(indices: Tensor, mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    """Return a mask [B, 1, N, M] that also hides the keys which a model did not choose.

    Args:
        indices: Numbers of the chosen keys of each query, int [B, N, chosen].
        mask: The mask, bool; None: a causal mask hides what is left.
        q: Queries [B, H, N, K].
        k: Keys [B, G, M, K].
    """
    count = k.shape[2]
    # A query chooses among all rows of a static cache; those not in use yet go to a last column.
    numbers = indices.long().clamp(max=count)[:, None]
    chosen = torch.zeros(len(q), 1, q.shape[2], count + 1, dtype=torch.bool, device=q.device)
    chosen = chosen.scatter(-1, numbers, torch.ones_like(numbers, dtype=torch.bool))[..., :count]
    return chosen if mask is None else chosen & mask[..., :count]


def _leave_out_rotation(attention: nn.Module, surgery: Surgery) -> None:
    """Skip the rotation of an attention, where it would not change queries and keys.

    The tables rotate nothing anyway; this saves the time of the multiplication.
    """
    forward = inspect.unwrap(type(attention).forward)
    used = {*forward.__code__.co_names} & {*forward.__globals__}
    rotations = [
        name
        for name in used
        if name.startswith("apply_rotary") and _keeps(forward.__globals__[name])
    ]
    if len(rotations) != 1:
        return
    # The same code with other globals, in which the name of the rotation stands for the identity.
    names = {**forward.__globals__, rotations[0]: _keep_heads}
    changed = FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
    )
    changed.__kwdefaults__ = forward.__kwdefaults__
    surgery.add_attribute(attention, "forward", MethodType(changed, attention))


def _keeps(rotate: Callable[..., Any]) -> bool:
    """Return whether a function of q, k, cos and sin keeps q and k by angles of 0."""
    q, k = torch.arange(16.0, device="cpu").reshape(1, 2, 2, 4).unbind(1)
    cos = torch.ones(1, 2, 4, device="cpu")
    try:
        out = rotate(q[:, None], k[:, None], cos, torch.zeros_like(cos))
    except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
        return False
    is_pair = isinstance(out, tuple) and len(out) == 2
    return is_pair and torch.equal(out[0], q[:, None]) and torch.equal(out[1], k[:, None])


def _keep_heads(q: Tensor, k: Tensor, *tables: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return queries and keys unchanged."""
    return q, k


def _describe_failure(error: Exception) -> str:
    """Return the message of a refusal, or the class and the first line of another error."""
    if isinstance(error, OptionError):
        return str(error.message)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _check_cross_attention(model: PreTrainedModel) -> None:
    """Check that a model reads one sequence, as a pass over one text shows it.

    Raises:
        OptionError: It has cross-attention.
    """
    config: Any = model.config
    # An encoder has the configuration of the whole model.
    has_decoder = any(path.split(".")[-1] == "decoder" for path, _ in model.named_modules())
    for name in ("add_cross_attention", "is_encoder_decoder"):
        value = getattr(config, name, None)
        if value and (has_decoder or name == "add_cross_attention"):
            raise OptionError("model", f"config.{name} is {value}: not supported")


def read_layer_number(path: str) -> int:
    """Return the number of the layer in the path of an attention."""
    return next(int(part) for part in path.split(".") if part.isdigit())


@cache
def add_token_memory(kind: type[Any]) -> type[Any]:
    """Return a subclass of a cache layer that also stores the tokens of its keys."""

    class EquippedLayer(kind):  # type: ignore[misc]
        zoo_tokens: Tokens | None
        zoo_updaters: tuple[str, ...]

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            self.change_tokens(lambda values: select_rows(values, beam_idx))

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            self.change_tokens(lambda values: select_rows(values, indices))

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            self.change_tokens(lambda values: _repeat(values, repeats))

        def crop(self, tokens_to_remove: int) -> None:
            # The tokens to remove have changed the keys of those before them.
            if tokens_to_remove and self.zoo_updaters:
                problem = (
                    f"{', '.join(self.zoo_updaters)} updates cached keys, which removing tokens"
                )
                raise OptionError("cache", f"{problem} does not undo; fill a new cache")
            super().crop(tokens_to_remove)
            if count := abs(tokens_to_remove):
                self.change_tokens(lambda values: values[:, :-count])

        def reset(self) -> None:
            super().reset()
            self.zoo_tokens, self.zoo_updaters = None, ()

        def change_tokens(self, change: Callable[[Tensor], Tensor]) -> None:
            if self.zoo_tokens is not None:
                self.zoo_tokens = self.zoo_tokens.map_values(change)

    EquippedLayer.__name__ = f"Equipped{kind.__name__}"
    return EquippedLayer


def _repeat(values: Tensor, repeats: int) -> Tensor:
    """Repeat each sample of [1|B, ..]; a batch of 1 stands for all samples."""
    return values if len(values) == 1 else values.repeat_interleave(repeats, dim=0)


class CacheView:
    """A view of a cache that transforms keys before it stores them, for one attention.

    Args:
        cache: The cache of transformers.
        layer: The attention; `update` sets its `keys`.
    """

    def __init__(self, cache: Any, layer: Layer) -> None:
        self._cache, self._layer = cache, layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values [B, G, N, ..] of new tokens, and return those of all tokens."""
        # The length of a cache is a tensor, and reading it may wait for a GPU: only where needed.
        layer, layers = self._layer, self._cache.layers
        # transformers makes the layers of a cache when they are first used.
        is_adopted = layer_idx < len(layers) and "zoo_tokens" in vars(layers[layer_idx])
        reads_keys = layer.chain.modifies_calls or layer.chain.key_updaters or layer.hooks
        seen = 0
        if layer.caches_latents:
            return self._store_latents(key_states, value_states, layer_idx, *args, **kwargs)
        if reads_keys or not is_adopted or isinstance(layers[layer_idx], StaticLayer):
            # The update changes the length of a static cache in place.
            seen = int(self._cache.get_seq_length(layer_idx))
        k = layer.transform_key(key_states)
        new_v = layer.transform_value(value_states)
        k, v = self._cache.update(k, new_v, layer_idx, *args, **kwargs)
        store = layers[layer_idx]
        if not is_adopted:
            _adopt(store, seen)
        if isinstance(store, StaticLayer):
            # A full window returns the keys of the tokens in it, all of them in use.
            count = min(seen + len(layer.tokens), k.shape[2])
            k, v = k[:, :, :count], v[:, :, :count]
            # The keys of this pass are those before their update, which writes into the cache.
            k = k.clone() if layer.chain.key_updaters else k
        if reads_keys:
            self._remember(store, seen, k)
        # Keys are final and no encoding reads their tokens: only their number matters.
        else:
            layer.keys = layer.tokens.replace(x=k[:1, 0, :, :0])
        return k.to(key_states.dtype), v

    def _store_latents(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store what keys and values are made of later, and the tokens of the keys.

        Raises:
            OptionError: An encoding updates cached keys, which are not there.
        """
        layer = self._layer
        if names := layer.chain.key_updaters:
            problem = f"{', '.join(names)} updates cached keys, and this model caches none"
            raise OptionError("encoding", f"{problem}; pass use_cache=False")
        seen = int(self._cache.get_seq_length(layer_idx))
        stored = self._cache.update(key_states, value_states, layer_idx, *args, **kwargs)
        store = self._cache.layers[layer_idx]
        if "zoo_tokens" not in vars(store):
            _adopt(store, seen)
        first, second = stored
        if isinstance(store, StaticLayer):
            count = min(seen + len(layer.tokens), first.shape[2])
            first, second = first[:, :, :count], second[:, :, :count]
        self._remember(store, seen, first)
        return first, second

    def _remember(self, store: Any, seen: int, k: Tensor) -> None:
        """Join the new tokens to those of earlier keys, and store them for later calls."""
        layer = self._layer
        readers = layer.chain.readers_of_earlier_keys
        if readers and seen + len(layer.tokens) > k.shape[2]:
            problem = (
                f"{', '.join(readers)} reads the key before the window, which this cache drops"
            )
            raise OptionError("cache", f"{problem}; use no cache, or a model without a window")
        tokens = layer.tokens.drop_states()
        if store.zoo_tokens is not None and seen:
            is_recorded = torch.is_grad_enabled()
            tokens = store.zoo_tokens.join(tokens if is_recorded else tokens.detach())
        layer.keys = tokens.last(k.shape[2], layer.chain.lookback)
        store.zoo_tokens = tokens
        if layer.chain.key_updaters:
            self._update_keys(store, k, layer.keys)
        # A sliding cache has dropped its first keys: drop their tokens too.
        if store.is_sliding:
            store.zoo_tokens = store.zoo_tokens.last(store.keys.shape[2], layer.chain.lookback)

    def _update_keys(self, store: Any, k: Tensor, tokens: Tokens) -> None:
        """Update the keys in the cache with the data of the new tokens.

        Raises:
            OptionError: The cache also keeps keys outside its window.
        """
        names, count = self._layer.chain.key_updaters, store.keys.shape[2]
        if isinstance(store, StaticSlidingWindowLayer):
            problem = f"{', '.join(names)} updates cached keys, which a static window does not keep"
            raise OptionError("cache", f"{problem}; use the dynamic cache")
        if store.is_sliding and count > k.shape[2]:
            problem = f"{', '.join(names)} updates cached keys, and this cache keeps some back"
            raise OptionError("cache", f"{problem} to remove tokens; decode without an assistant")
        k, store.zoo_tokens = self._layer.chain.update_cached_keys(k, tokens)
        store.zoo_updaters = tuple(names)
        if isinstance(store, StaticLayer):
            store.keys[:, :, : k.shape[2]] = k
        else:
            store.keys = k[:, :, k.shape[2] - count :]


def _adopt(store: Any, seen: int) -> None:
    """Change a cache layer into one that stores tokens.

    Raises:
        OptionError: Its class is not supported, or it already contains keys.
    """
    if not isinstance(store, DynamicLayer | StaticLayer):
        problem = f"an equipped model cannot use a cache of {type(store).__name__}"
        raise OptionError("cache", f"{problem}; use the dynamic or the static cache")
    if seen:
        problem = "this cache was filled by a model with other positions"
        raise OptionError("cache", f"{problem}; start from an empty cache")
    # Changing the class of the instance keeps its keys and works for every kind of cache.
    kind: Any = type(store)
    store.__class__ = add_token_memory(kind)
    store.zoo_tokens, store.zoo_updaters = None, ()
