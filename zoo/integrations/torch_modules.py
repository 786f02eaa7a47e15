"""An adapter for torch: `nn.TransformerEncoder`, its layer, and `nn.MultiheadAttention`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.encoding import Dims
from zoo.errors import OptionError
from zoo.integrations.equipment import (
    Equipment,
    ForwardPass,
    Layer,
    Surgery,
    TurnedChannels,
    find_active,
)

MODULES = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
INPUTS = ("src", "query")


class TorchAdapter:
    """The adapter of an encoder of torch, which has no positions.

    Args:
        model: The encoder, a layer of one, or an attention.
        causal: Whether a query attends only to itself and earlier tokens.

    Raises:
        OptionError: An attention of the model has a feature that encodings do not support.
    """

    turned: tuple[TurnedChannels | None, ...] = ()
    keeps_rotation = False
    notes: tuple[str, ...] = ()
    position_axes = 1
    without_position: tuple[int, ...] = ()
    windowed: tuple[bool, ...] = ()
    adds_positions = False

    def __init__(self, model: nn.Module, causal: bool) -> None:
        self.model, self.causal = model, causal
        self.attentions = _find_attentions(model)
        for attention in self.attentions:
            _check_attention(attention)

    def find_sizes(self, length: int | tuple[int, ...] | None) -> tuple[Dims, ...]:
        """Return the sizes of each layer."""
        first = self.attentions[0]
        depth = len(self.attentions)
        return (Dims(first.embed_dim, first.num_heads, 1, length=length, depth=depth),) * depth

    def find_own(self, length: int | tuple[int, ...] | None) -> None:
        """Return None: modules of torch have no positions."""

    def install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Put the encodings into the model, and describe what was removed from it."""
        hooks = AttentionHooks(equipment, self.attentions[0].batch_first, self.model)
        surgery.hook(self.model, hooks.begin)
        if isinstance(self.model, nn.TransformerEncoder):
            surgery.set_attribute(self.model, "use_nested_tensor", False)
        for number, attention in enumerate(self.attentions):
            surgery.add_attribute(attention, "forward", partial(hooks.attend, number, attention))
            if attention is not self.model:
                # With a hook, the layer does not use its fused kernel, which ignores `forward`.
                surgery.hook(attention, _pass_on)
        if equipment.carriers and isinstance(self.model, nn.TransformerEncoder):
            # Nothing reads what the last layer would hand on.
            for layer in list(self.model.layers)[:-1]:
                _hook_states_after_attention(layer, hooks, surgery)
        return ["the fused inference kernel of torch: not used"]


class AttentionHooks:
    """Hooks that pass tokens from layer to layer, and the attention of each layer.

    Args:
        equipment: The encodings.
        batch_first: Whether states are [B, N, D] instead of [N, B, D].
        model: The equipped model.
    """

    def __init__(self, equipment: Equipment, batch_first: bool, model: nn.Module) -> None:
        self._parts, self.batch_first = (model, equipment), batch_first
        self.current = ForwardPass()
        self.attended: Layer | None = None  # whose states after attention are yet to come
        self.names = tuple(inspect.signature(model.forward).parameters)

    @property
    def equipment(self) -> Equipment:
        """The encodings, or the copy of them that an adapter has."""
        return find_active(*self._parts)

    def begin(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make tokens, and apply encodings to the input. It is called before the model."""
        name = next((one for one in INPUTS if one in kwargs), "")
        states = kwargs[name] if name else args[0]
        if states.is_nested:
            raise OptionError("src", "an equipped encoder accepts padded tensors, not nested ones")

        x = self._put_batch_first(states)
        self.current = ForwardPass()
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        positions, document = self._locate(x, given)
        x = self.equipment.begin(self.current, x, positions, document)
        x = self._restore(x, states.dim())
        # For a single attention, query, key and value are the same tensor: replace all three.
        args = tuple(x if one is states else one for one in args)
        return args, {key: x if one is states else one for key, one in kwargs.items()}

    def attend(
        self,
        number: int,
        attention: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute an attention with encodings, in place of its `forward`.

        Args:
            number: Index of the layer.
            attention: The attention.
            query: Input [B, N, D], or [N, B, D] if not `batch_first`, or [N, D].
            key: The same tensor.
            value: The same tensor.
            key_padding_mask: True or -inf for keys to ignore, [B, N] or [N].
            need_weights: Whether to return attention weights before dropout.
            attn_mask: True or -inf for pairs to ignore, [N, N] or [B H, N, N].
            average_attn_weights: Whether to average weights over heads.
            is_causal: A hint that `attn_mask` is causal. Without one, as in torch, it is refused,
                unless the model was equipped as causal.

        Raises:
            OptionError: Keys are not the queries, a mask adds numbers other than 0 and -inf, or
                differs between heads, or `is_causal` comes without a mask.
        """
        if is_causal and attn_mask is None and not self.equipment.causal:
            problem = (
                "is_causal is a hint about attn_mask, which is missing; pass the mask, or call"
            )
            raise OptionError("is_causal", f"{problem} zoo.equip with causal=True")
        if key is not query or value is not query:
            problem = "an equipped attention is self-attention: pass one tensor as all three"
            raise OptionError("key", problem)
        x = self._put_batch_first(query)
        self.current.has_mask_of_pairs = attn_mask is not None
        layer = self.equipment.enter_layer(self.current, number, x)
        q, k, v = (
            one.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for one in F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        )
        self.attended = layer if self.equipment.carriers else None
        mask = _merge_masks(q, attn_mask, key_padding_mask)
        dropout = attention.dropout if attention.training else 0.0
        # Weights need a described call; otherwise the fast path may apply.
        weights = None
        if need_weights:
            call = layer.describe(q, k, v, scale=None, mask=mask, dropout=dropout)
            heads, weights = layer.attend_call(call), layer.weights(call)
        else:
            heads = layer.attend(q, k, v, scale=None, mask=mask, dropout=dropout)
        out = attention.out_proj(heads.transpose(1, 2).flatten(-2))

        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if query.dim() == 3 else weights[0]
        return self._restore(out, query.dim()), weights

    def carry(self, states: Tensor) -> None:
        """Hand on what encodings carry, by states after attention."""
        layer, self.attended = self.attended, None
        if layer is not None:
            self.equipment.carry(layer, self._put_batch_first(states))

    def carry_input(self, norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hand on what encodings carry, before the norm of a layer's MLP."""
        self.carry(args[0])

    def carry_output(
        self, norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        """Hand on what encodings carry, after the norm that follows attention."""
        self.carry(output)

    def _locate(self, x: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Return the positions and documents int [1|B, N] of states x [B, N, D].

        Padding has no position: those of the other tokens are consecutive.
        """
        for name in ("src_key_padding_mask", "key_padding_mask"):
            if given.get(name) is not None:
                mask = _read_mask(given[name], name).reshape(len(x), x.shape[1])
                return (mask.long().cumsum(1) - 1).clamp(min=0), mask.long() - 1
        return torch.arange(x.shape[1], device=x.device)[None], None

    def _put_batch_first(self, states: Tensor) -> Tensor:
        if states.dim() == 2:
            return states[None]
        return states if self.batch_first else states.transpose(0, 1)

    def _restore(self, x: Tensor, ndim: int) -> Tensor:
        if ndim == 2:
            return x[0]
        return x if self.batch_first else x.transpose(0, 1)


def _pass_on(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Do nothing. A hook by itself disables the fused kernel of a layer."""


def _hook_states_after_attention(layer: Any, hooks: AttentionHooks, surgery: Surgery) -> None:
    """Hand the states after attention of a layer to the encodings."""
    if layer.norm_first:
        surgery.hook(layer.norm2, hooks.carry_input)
    else:
        surgery.hook_output(layer.norm1, hooks.carry_output)


def _find_attentions(model: nn.Module) -> list[nn.MultiheadAttention]:
    if isinstance(model, nn.MultiheadAttention):
        return [model]
    layers = model.layers if isinstance(model, nn.TransformerEncoder) else [model]
    found = []
    for layer in layers:
        if type(layer) is not nn.TransformerEncoderLayer:
            raise OptionError("model", f"a layer of class {type(layer).__name__} is not supported")
        found.append(layer.self_attn)
    return found


def _check_attention(attention: nn.MultiheadAttention) -> None:
    """Check that an attention has no feature that encodings would silently ignore.

    Raises:
        OptionError: It has one.
    """
    # A derived class may compute something else, and its forward would be replaced.
    if type(attention) is not nn.MultiheadAttention:
        kind = type(attention).__name__
        raise OptionError("model", f"an attention of class {kind} is not supported")
    if attention.bias_k is not None or attention.add_zero_attn:
        raise OptionError("model", "add_bias_kv and add_zero_attn add keys without a position")
    if attention.in_proj_weight is None:
        raise OptionError("model", "kdim and vdim are for cross-attention, which has no encoding")


def _merge_masks(
    q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
) -> Tensor | None:
    """Merge masks of torch into one, True where a query may attend to a key, [1|B, 1, N, N]."""
    batch, heads, count, _ = q.shape
    visible = None
    if attn_mask is not None:
        visible = _read_mask(attn_mask, "attn_mask").reshape(-1, 1, count, count)
        # [B H, N, N] has a mask per head, which must be the same for all.
        if len(visible) != 1:
            by_head = visible.view(batch, heads, count, count)
            if not (by_head == by_head[:, :1]).all():
                raise OptionError("attn_mask", "an equipped attention has one mask for all heads")
            visible = by_head[:, :1]
    if key_padding_mask is not None:
        keys = _read_mask(key_padding_mask, "key_padding_mask").reshape(batch, 1, 1, count)
        keys = keys.expand(-1, -1, count, -1)
        visible = keys if visible is None else visible & keys
    return visible


def _read_mask(mask: Tensor, name: str) -> Tensor:
    """Convert a mask of torch, bool or additive, to True where a query may attend to a key."""
    if mask.dtype == torch.bool:
        return ~mask
    if not ((mask == 0) | mask.isneginf()).all():
        problem = "an equipped attention accepts masks of 0 and -inf, not other biases"
        raise OptionError(name, problem)
    return mask == 0
