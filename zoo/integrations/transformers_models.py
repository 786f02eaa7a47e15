"""An adapter for models of Hugging Face transformers: their layers, caches and positions.

The attention of every supported model uses transformers' AttentionInterface. An equipped model
selects the implementation "zoo", and hooks on its layers pass tokens and states to it. The tokens
of cached keys are stored in the layers of the cache, so that every operation that reorders,
repeats, selects or crops the cache also applies to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import DynamicLayer, StaticLayer, StaticSlidingWindowLayer
from transformers.masking_utils import find_packed_sequence_indices, sdpa_mask

from zoo.attention.encoding import Dims
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens, select_rows
from zoo.errors import OptionError
from zoo.integrations.equality import evaluating, find_difference, record_attentions
from zoo.integrations.equipment import NAME, Equipment, ForwardPass, Layer, Surgery, find_active
from zoo.integrations.families import FAMILIES, REASONS, Family
from zoo.integrations.given_masks import find_documents, follows_mask, read_visible
from zoo.integrations.guards import guard_classes
from zoo.integrations.own_rope import OwnRope, keep_rotary, read_own_rope, rotates_neighbours

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


class NoRotary(nn.Module):
    """A rotary embedding that rotates nothing, in place of a model's own.

    Args:
        original: The replaced module.
        width: Number of channels of the tables; 0 if the model then skips its rotation.
    """

    def __init__(self, original: nn.Module, width: int) -> None:
        super().__init__()
        self._original = (original,)  # in a tuple, so that it is no submodule
        self.width = width

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return ones as cos and zeros as sin, [1, N, width], for states x [B, N, D]."""
        cos = x.new_ones(1, x.shape[1], self.width)
        return cos, torch.zeros_like(cos)


class NoComplexRotary(NoRotary):
    """A rotary embedding that rotates nothing, for models that multiply by complex numbers."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Return complex ones [1, N, width] for states x [B, N, D]."""
        return torch.ones(1, x.shape[1], self.width, dtype=torch.complex64, device=x.device)


class NoPatchRotary(NoRotary):
    """A rotary embedding that rotates no patches of images.

    Tables of images [patches, width] apply to the last tokens; empty ones apply to none.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return empty cos and sin [0, width] for images x [B, C, height, width]."""
        cos = x.new_ones(0, self.width)
        return cos, torch.zeros_like(cos)


class TransformersAdapter:
    """The adapter of a model of transformers.

    Args:
        model: The model.

    Raises:
        OptionError: The family of the model is unknown, or it has a feature that encodings do not
            support.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.config = model, model.config
        self.family = _find_family(self.config)
        _check_config(self.config, self.family)
        self.base = _find_base(model, self.family)
        self.last_position: int | None = None  # of the texts that the encodings are made for
        self.layers: Sequence[nn.Module] = self.base.get_submodule(self.family.layers)  # type: ignore[assignment]
        if not self.layers:
            raise OptionError("model", "the model has no layers")
        if getattr(self.config, "is_causal", None) and not self._attends_causally():
            problem = "config.is_causal is True, which its masks for padding do not follow"
            raise OptionError("model", f"{problem}; set is_decoder, or leave is_causal out")

    @property
    def attentions(self) -> list[nn.Module]:
        """The attention of each layer."""
        return [layer.get_submodule(self.family.attention) for layer in self.layers]

    @property
    def causal(self) -> bool:
        """True if the model has a causal mask."""
        # transformers uses the entry of the configuration in place of what the attention says.
        found = getattr(self.config, "is_causal", None)
        return self._attends_causally() if found is None else bool(found)

    def _attends_causally(self) -> bool:
        return bool(getattr(self.attentions[0], "is_causal", False))

    @property
    def interleave(self) -> int:
        """Number of channels of a head that the model rotates as halves."""
        is_rotated = self.family.rotary and not self.family.is_image
        is_complex = self.family.rotary_table == "complex"
        if not is_rotated or is_complex or rotates_neighbours(self.attentions[0]):
            return 0
        return self._read_ropes()[0].width

    @property
    def without_position(self) -> tuple[int, ...]:
        """Indices of the layers that have no positions in the original model (NoPE layers)."""
        has_position = self.family.has_position
        return tuple(number for number, one in enumerate(self.attentions) if not has_position(one))

    @property
    def windowed(self) -> tuple[bool, ...]:
        """For each layer, whether it has a window; empty if no layer has one."""
        kinds = getattr(self.config, "layer_types", None)
        # In some families all layers have the window of the configuration, or none has.
        common = hasattr(type(self.config), "sliding_window") and self.config.sliding_window
        if kinds:
            found = tuple(kind != "full_attention" for kind in kinds)
        else:
            found = tuple(bool(getattr(a, "sliding_window", common)) for a in self.attentions)
        return found if any(found) else ()

    @property
    def adds_positions(self) -> bool:
        """True if the model has positions that single layers cannot keep."""
        return bool(self.family.tables) or self.family.is_image

    def find_dims(self, length: int | tuple[int, ...] | None) -> Dims:
        """Return the sizes of the model, with its training length as the default length."""
        config = self.config
        if self.family.is_image:
            sides = zip(_pair(config.image_size), _pair(config.patch_size), strict=True)
            axes, length = 2, length or tuple(size // patch for size, patch in sides)
        else:
            axes, length = 1, length or getattr(config, "max_position_embeddings", None)
        return Dims(
            config.hidden_size,
            config.num_attention_heads,
            axes,
            length=length,
            depth=len(self.layers),
            kv_heads=getattr(config, "num_key_value_heads", None),
            head_dim=_head_dim(config),
        )

    @property
    def own_ropes(self) -> tuple[Mapping[str, Any], ...]:
        """For each layer, the options of `rope` that equal the model's own rotation.

        Raises:
            OptionError: The model scales its frequencies in a way that `rope` does not support.
        """
        if self.family.is_image or not self.family.rotary:
            return ()
        return tuple(rope.translate(_head_dim(self.config)) for rope in self._read_ropes())

    def _read_ropes(self) -> list[OwnRope]:
        """Return the model's own rotation in each layer."""
        rotary = self.base.get_submodule(self.family.rotary)
        kinds = getattr(self.config, "layer_types", None) or [""] * len(self.layers)
        found = {kind: read_own_rope(rotary, self.config, kind) for kind in set(kinds)}
        return [found[kind] for kind in kinds]

    def install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Put the encodings into the model, and describe what was removed from it."""
        # Where nothing should change, everything is compared; elsewhere all but the positions.
        self.last_position = _find_last_position(equipment)
        own = self._record() if equipment.equals_own else []
        removed = [] if equipment.keeps_positions else self._remove_positions(surgery)
        self._replace_config(surgery)
        hooks = PassHooks(equipment, self.model, self.family, self.base, self.layers[0])
        surgery.hook(self.base, hooks.start_pass)
        surgery.hook(self.layers[0], hooks.begin)
        for number, attention in enumerate(self.attentions):
            if removed and self.family.rotary and "forward" not in vars(attention):
                changed = _leave_out_rotation(attention, self.family.rotation)
                surgery.add_attribute(attention, "forward", changed)
            surgery.forget(attention, "zoo_layer")
            surgery.hook(attention, partial(hooks.enter_layer, number))
        self._compare(equipment, own)
        if not equipment.equals_own:
            self._take_over_temperature(equipment, surgery)
            # An encoding may refuse soft caps or sinks, which the model passes to each call.
            self._record()
        guard_classes()
        return removed

    def _take_over_temperature(self, equipment: Equipment, surgery: Surgery) -> None:
        """Scale the queries of layers by zoo where the model scales them (Llama 4).

        The model counts the rows of a pass, with padding; zoo counts positions.
        """
        attention: Any
        for number, attention in enumerate(self.attentions):
            if getattr(attention, TEMPERATURE, False) and not attention.use_rope:
                surgery.set_attribute(attention, TEMPERATURE, value=False)
                equipment.temperatures[number] = Temperature(
                    floor=float(attention.floor_scale),
                    scale=float(attention.attn_scale),
                    offset=1.0,
                )

    def _record(self, replay: Sequence[Tensor] = ()) -> list[Tensor]:
        """Record the output of each attention for a few tokens; empty for a model without weights.

        Args:
            replay: Outputs that the attentions hand on instead of their own.
        """
        example = next(self.model.parameters())
        if example.is_meta:
            return []
        inputs = self._make_inputs(example)
        with evaluating(self.model), self._keep_rotary():
            return record_attentions(lambda: self.base(**inputs), self.attentions, replay)

    def _keep_rotary(self) -> AbstractContextManager[None]:
        if self.family.is_image or not self.family.rotary:
            return nullcontext()
        return keep_rotary(self.base.get_submodule(self.family.rotary))

    def _make_inputs(self, example: Tensor) -> dict[str, Any]:
        """Return a few tokens, or an image, on the device of a weight."""
        config, device = self.config, example.device
        draw = torch.Generator("cpu").manual_seed(0)
        if self.family.is_image:
            size = _pair(config.image_size)
            pixels = torch.randn(1, config.num_channels, *size, generator=draw, device="cpu")
            return {"pixel_values": pixels.to(example)}
        places: Sequence[int] = PROBED
        if self.last_position is not None:
            # The last position tells the model the length that the encodings are made for.
            places = [*(one for one in PROBED if one < self.last_position), self.last_position]
        positions = torch.tensor([places], device="cpu")
        ids = torch.randint(config.vocab_size, positions.shape, generator=draw, device="cpu")
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.family.rotary:
            inputs["position_ids"] = positions
        return {name: one.to(device) for name, one in inputs.items()}

    def _compare(self, equipment: Equipment, own: Sequence[Tensor]) -> None:
        """Compare each attention with the model's own, of which the positions may be left out.

        Args:
            equipment: The encodings, which are installed.
            own: What the attentions computed before; empty: compare them without positions.

        Raises:
            OptionError: They differ by more than rounding.
        """
        if own:
            found = find_difference(own, self._record(own))
        else:
            with equipment.without_encodings():
                config = self.model.config
                config._attn_implementation = self.config._attn_implementation
                own = self._record()
                config._attn_implementation = IMPLEMENTATION
                found = find_difference(own, self._record(own))
        if found is not None:
            number, error = found
            problem = (
                f"the attention of layer {number} would differ by {error:.1e} from the model's own"
            )
            remedy = "its configuration or its code has a feature that zoo does not know"
            raise OptionError("model", f"{problem}: {remedy}")

    def _replace_config(self, surgery: Surgery) -> None:
        """Select the implementation in a copy of the configuration, which models may share."""
        original, config = self.config, copy(self.config)
        before = dict(vars(config))
        config._attn_implementation = IMPLEMENTATION
        modules = [one for one in self.model.modules() if vars(one).get("config") is original]

        def select() -> None:
            for module in modules:
                module.config = config

        # Edits that were made while the model was equipped stay, in the copy.
        def restore() -> None:
            config._attn_implementation = original._attn_implementation
            is_edited = vars(config) != before
            for module in modules:
                if module.config is config and not is_edited:
                    module.config = original

        surgery.call(select, undo=restore)

    def _rotary_width(self) -> int:
        """Return the number of channels of a head that the model's own tables rotate."""
        if self.family.is_image:
            return _head_dim(self.config)
        width = self._read_ropes()[0].width
        return width if self.family.rotary_table == "full" else width // 2

    def _remove_positions(self, surgery: Surgery) -> list[str]:
        removed = []
        if self.family.rotary:
            original = self.base.get_submodule(self.family.rotary)
            width = 0 if self.family.empty_rotary else self._rotary_width()
            kind = NoPatchRotary if self.family.is_image else NoRotary
            if self.family.rotary_table == "complex":
                kind = NoComplexRotary
            surgery.replace_module(self.base, self.family.rotary, kind(original, width))
            removed.append(f"{self.family.rotary}: rotates nothing")
        for path in self.family.tables:
            surgery.zero_table(self.base, path)
            removed.append(f"{path}: set to 0 and frozen")
        return removed


class PassHooks:
    """Hooks that pass tokens from layer to layer.

    Args:
        equipment: The encodings.
        model: The equipped model.
        family: The paths of the model's parts.
        base: The base model.
        first: Its first layer.
    """

    def __init__(
        self,
        equipment: Equipment,
        model: PreTrainedModel,
        family: Family,
        base: nn.Module,
        first: nn.Module,
    ) -> None:
        config: Any = model.config
        self._parts = (model, equipment)
        self.is_image = family.is_image
        self.patch_size = _pair(config.patch_size) if family.is_image else (1, 1)
        self.current = ForwardPass()
        self._model_names, self._names = _argument_names(base), _argument_names(first)

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
        if chosen != IMPLEMENTATION and not self.equipment.is_left_out:
            problem = f"attn_implementation {chosen!r} computes no encodings"
            remedy = f"set {IMPLEMENTATION!r} again, or call zoo.unequip first"
            raise OptionError("attn_implementation", f"{problem}; {remedy}")
        self._check_adapters(self.equipment)
        given = {**dict(zip(self._model_names, args, strict=False)), **kwargs}
        self._check_masks(given)
        # transformers tells packed texts apart only where no mask is given.
        self.current.is_packed = given.get("attention_mask") is None
        self.current.positions = given.get("position_ids")
        if self.is_image:
            pixels = args[0] if args else kwargs["pixel_values"]
            height, width = pixels.shape[-2:]
            rows, columns = self.patch_size
            self.current.grid_size = (height // rows, width // columns)
        return args, {**kwargs, PASS: self.current}

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
        x = args[0] if args else kwargs["hidden_states"]
        equipment = self.equipment
        positions = document = None
        if not self.is_image:
            given = {**dict(zip(self._names, args, strict=False)), **kwargs}
            positions, document = self._locate(x, given, kwargs)
        x = equipment.begin(self._find_pass(kwargs), x, positions, document)
        if args:
            return (x, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": x}

    def enter_layer(
        self, number: int, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Prepare an attention. It is called before the attention, with its input and cache."""
        x = args[0] if args else kwargs["hidden_states"]
        equipment = self.equipment
        layer = equipment.enter_layer(self._find_pass(kwargs), number, x)
        # Setting an attribute of an nn.Module is slow.
        vars(attention)["zoo_layer"] = layer
        for name in CACHE_NAMES:
            if kwargs.get(name) is not None:
                kwargs = {**kwargs, name: CacheView(kwargs[name], layer)}
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
        mask, cache = given.get("attention_mask"), None
        for name in CACHE_NAMES:
            cache = given.get(name) if cache is None else cache
        positions = given.get("position_ids")
        if positions is None:
            positions = current.positions

        document = visible = None
        if mask is not None and (equipment.needs_documents or positions is None):
            visible, end = read_visible(mask), mask.shape[-1]
            # A static cache has rows that are not in use yet.
            if cache is not None and any(isinstance(one, StaticLayer) for one in cache.layers[:1]):
                end = int(cache.get_seq_length()) + count
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
        return positions, document if equipment.needs_documents else None

    def _find_pass(self, kwargs: Mapping[str, Any]) -> ForwardPass:
        found = kwargs.get(PASS)
        return self.current if found is None else found


def _check_hidden(mask: Tensor, cache: Any, given: Mapping[str, Any]) -> None:
    """Check that a mask [B, M] hides no cached token whose data later tokens have summed.

    Args:
        mask: 0 for masked tokens; the last of them are new.
        cache: The cache, with the tokens of its keys.
        given: The arguments of the model by name.

    Raises:
        OptionError: A token was visible when it was cached, and is masked now.
    """
    layer = cache.layers[0] if cache.layers else None
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
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of an equipped model, for transformers' AttentionInterface.

    Returns:
        The output [B, N, H, V], and the weights [B, H, N, M] if they were requested.

    Raises:
        OptionError: `is_causal` is not what it was when the model was equipped, or there is an
            argument that zoo does not read.
    """
    for name, given in kwargs.items():
        if given is not None and name not in UNREAD:
            problem = f"the attention of an equipped model does not read {name}"
            raise OptionError(name, f"{problem}; leave it out, or call zoo.unequip first")
    layer = module.zoo_layer
    # What a pass leaves behind would hinder copies of the model.
    vars(module)["zoo_layer"] = None
    if is_causal is not None and is_causal != layer.causal:
        problem = f"the model was equipped with is_causal={layer.causal}"
        remedy = "call zoo.unequip, change its configuration, and equip it again"
        raise OptionError("is_causal", f"{problem}; {remedy}")
    mask = None if attention_mask is None else read_visible(attention_mask)
    if output_attentions is None:
        output_attentions = module.config.output_attentions
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
        )
        return out.transpose(1, 2).contiguous(), None
    call = layer.describe(
        query, key, value, scale=scaling, mask=mask, dropout=dropout, softcap=softcap, sinks=s_aux
    )
    # Keys that left a sliding window may still be in the call, with weights of 0.
    weights = layer.weights(call)[..., -key.shape[2] :]
    return layer.attend_call(call).transpose(1, 2).contiguous(), weights


# A model that was unpickled needs them too, so they do not wait for the first `zoo.equip`.
AttentionInterface.register(IMPLEMENTATION, attend_equipped)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def _leave_out_rotation(attention: nn.Module, rotation: str) -> Callable[..., Any]:
    """Return the forward of an attention without its call of the model's own `rotation`.

    The tables rotate nothing anyway; this saves the time of the multiplication.
    """
    # The same code with other globals, in which the name of the rotation stands for the identity.
    forward = inspect.unwrap(type(attention).forward)
    names = {**forward.__globals__, rotation: _keep_heads}
    changed = FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
    )
    changed.__kwdefaults__ = forward.__kwdefaults__
    return MethodType(changed, attention)


def _keep_heads(q: Tensor, k: Tensor, *tables: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return queries and keys unchanged."""
    return q, k


def _find_family(config: Any) -> Family:
    kind = config.model_type
    if kind in FAMILIES:
        return FAMILIES[kind]
    known = ", ".join(FAMILIES)
    reason = f": {REASONS[kind]}" if kind in REASONS else ""
    raise OptionError("model", f"models of type {kind} cannot be equipped{reason}; known: {known}")


def _find_base(model: PreTrainedModel, family: Family) -> nn.Module:
    """Return the module to which the paths of a family are relative: the model or its base."""
    root = family.layers.partition(".")[0]
    if root in dict(model.named_children()):
        return model
    # The text model of Llama 4 is not under the name that its class gives for its base.
    return model.model if model.base_model is model else model.base_model


def _check_config(config: Any, family: Family) -> None:
    """Check that a configuration has no feature that encodings would silently ignore.

    Raises:
        OptionError: It has one.
    """
    for name in ("attn_logit_softcapping", "add_cross_attention", "is_encoder_decoder"):
        if name == "attn_logit_softcapping" and family.caps_scores:
            continue
        if getattr(config, name, None):
            raise OptionError("model", f"config.{name} is {getattr(config, name)}: not supported")
    kind = getattr(config, "position_embedding_type", "absolute")
    if kind not in (None, "absolute"):
        raise OptionError("model", f"config.position_embedding_type is {kind}: not supported")


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width of a size of an image or a patch."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def _head_dim(config: Any) -> int:
    found = getattr(config, "head_dim", None)
    return int(found or config.hidden_size // config.num_attention_heads)


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
        if reads_keys or not is_adopted or isinstance(layers[layer_idx], StaticLayer):
            # The update changes the length of a static cache in place.
            seen = int(self._cache.get_seq_length(layer_idx))
        k = layer.transform_key(key_states)
        k, v = self._cache.update(k, value_states, layer_idx, *args, **kwargs)
        store = layers[layer_idx]
        if not is_adopted:
            _adopt(store, seen)
        if isinstance(store, StaticLayer):
            count = seen + len(layer.tokens)
            k, v = k[:, :, :count], v[:, :, :count]
            # The keys of this pass are those before their update, which writes into the cache.
            k = k.clone() if layer.chain.key_updaters else k
        if reads_keys:
            self._remember(store, seen, k)
        # Keys are final and no encoding reads their tokens: only their number matters.
        else:
            layer.keys = layer.tokens.replace(x=k[:1, 0, :, :0])
        return k.to(key_states.dtype), v

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
    if isinstance(store, StaticSlidingWindowLayer) or not isinstance(
        store, DynamicLayer | StaticLayer
    ):
        problem = f"an equipped model cannot use a cache of {type(store).__name__}"
        raise OptionError("cache", f"{problem}; use the dynamic or the static cache")
    if seen:
        problem = "this cache was filled by a model with other positions"
        raise OptionError("cache", f"{problem}; start from an empty cache")
    # Changing the class of the instance keeps its keys and works for every kind of cache.
    kind: Any = type(store)
    store.__class__ = add_token_memory(kind)
    store.zoo_tokens, store.zoo_updaters = None, ()
