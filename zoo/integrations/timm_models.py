"""An adapter for vision transformers of timm: `VisionTransformer` and `Eva`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import Eva, EvaAttention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.encoding import Dims
from zoo.errors import OptionError
from zoo.integrations.equipment import Equipment, ForwardPass, Surgery, TurnedChannels, find_active
from zoo.suggestions import list_known

MODELS = (VisionTransformer, Eva)
ATTENTIONS = (Attention, AttentionRope, EvaAttention)


class TimmAdapter:
    """The adapter of a vision transformer of timm.

    Args:
        model: The model.

    Raises:
        OptionError: The class of the model is unknown, or it has a feature that encodings do not
            support.
    """

    causal = False
    turned: tuple[TurnedChannels | None, ...] = ()
    keeps_rotation = False
    notes: tuple[str, ...] = ()
    position_axes = 2
    without_position: tuple[int, ...] = ()
    windowed: tuple[bool, ...] = ()
    adds_positions = True

    def __init__(self, model: Any) -> None:
        _check_model(model)
        self.model = model
        self.attentions: list[Any] = [block.attn for block in self.model.blocks]

    def find_sizes(self, length: int | tuple[int, ...] | None) -> tuple[Dims, ...]:
        """Return the sizes of each layer, with the training grid as the default length."""
        first = self.attentions[0]
        dims = Dims(
            self.model.embed_dim,
            first.num_heads,
            2,
            length=length or tuple(self.model.patch_embed.grid_size),
            depth=len(self.attentions),
            kv_heads=getattr(first, "num_kv_heads", None),
            head_dim=first.head_dim,
        )
        return (dims,) * len(self.attentions)

    def find_own(self, length: int | tuple[int, ...] | None) -> None:
        """Return None: zoo has no encoding that is the rotation of these models."""

    def install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Put the encodings into the model, and describe what was removed from it.

        Raises:
            OptionError: The model has a rope of its own that would have to stay, or an encoding
                carries data from layer to layer.
        """
        if equipment.carriers:
            problem = f"{equipment.carriers[0]} carries data from layer to layer"
            raise OptionError("encoding", f"{problem}, which no image model of timm hands on")
        removed = []
        has_rope = getattr(self.model, "rope", None) is not None
        if equipment.keeps_positions:
            if has_rope:
                raise OptionError("model", "the model has a rope of its own; equip it first")
        elif self.model.pos_embed is not None:
            surgery.zero_table(self.model, "pos_embed")
            removed.append("pos_embed: set to 0 and frozen")
        if has_rope:
            surgery.set_attribute(self.model, "rope", None)
            removed.append("rope: removed")

        # Every attention calls zoo in place of its own forward.
        hooks = TimmHooks(equipment, self.model)
        surgery.hook(self.model.patch_embed, hooks.start_pass)
        surgery.hook(self.model.norm_pre, hooks.begin)
        for number, attention in enumerate(self.attentions):
            attend = partial(hooks.attend, number, attention)
            surgery.add_attribute(attention, "forward", attend)
        return removed


class TimmHooks:
    """Hooks that pass tokens from layer to layer.

    Args:
        equipment: The encodings.
        model: The equipped model.
    """

    def __init__(self, equipment: Equipment, model: nn.Module) -> None:
        self._parts = (model, equipment)
        self.current = ForwardPass()

    @property
    def equipment(self) -> Equipment:
        """The encodings, or the copy of them that an adapter has."""
        return find_active(*self._parts)

    def start_pass(
        self, patch_embed: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Start a forward pass. It is called before the patch embedding."""
        images = args[0] if args else kwargs["x"]
        height, width = images.shape[-2:]
        grid_size = tuple(patch_embed.dynamic_feat_size((height, width)))
        self.current = ForwardPass(grid_size=grid_size)
        return args, kwargs

    def begin(
        self, norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make tokens, and apply encodings to the input. It is called before the first norm."""
        return (self.equipment.begin(self.current, args[0], None),), kwargs

    def attend(
        self,
        number: int,
        attention: Any,
        x: Tensor,
        rope: None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Compute an attention of timm with encodings, in place of its `forward`.

        Args:
            number: Index of the layer.
            attention: The attention.
            x: Input [B, N, D].
            rope: None, because the model's rotary embedding is removed.
            attn_mask: Mask that broadcasts to [B, 1, N, N], bool.
            is_causal: Not supported.

        Raises:
            OptionError: The mask is not bool, differs between heads, or is causal.
        """
        self.current.has_mask_of_pairs = attn_mask is not None
        layer = self.equipment.enter_layer(self.current, number, x)
        q, k, v = project_heads(attention, x)
        dropout = attention.attn_drop.p if attention.training else 0.0
        mask = _read_mask(attn_mask, is_causal)
        heads = layer.attend(q, k, v, scale=attention.scale, mask=mask, dropout=dropout)
        out = heads.transpose(1, 2).flatten(-2)

        # The rest of timm's forward: a norm and a gate of the output, if the model has them.
        out = attention.norm(out)
        if attention.gate is not None:
            out = out * attention.gate(x).sigmoid()
        return attention.proj_drop(attention.proj(out))


def project_heads(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Project the input [B, N, D] of an attention of timm to q, k and v [B, H|G, N, K]."""
    # timm has three layouts: separate projections, a fused one, and a fused one whose biases are
    # separate because keys have none (BEiT, EVA).
    if attention.qkv is None:
        q, k, v = (project(x) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
    elif getattr(attention, "q_bias", None) is None:
        q, k, v = attention.qkv(x).chunk(3, dim=-1)
    else:
        bias = torch.cat([attention.q_bias, attention.k_bias, attention.v_bias])
        if attention.qkv.bias is not None:
            bias = bias + attention.qkv.bias
        q, k, v = F.linear(x, attention.qkv.weight, bias).chunk(3, dim=-1)
    q, k, v = (one.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2) for one in (q, k, v))
    return attention.q_norm(q), attention.k_norm(k), v


def _check_model(model: nn.Module) -> None:
    """Check that the model has no feature that encodings would silently ignore.

    Raises:
        OptionError: It has one, or its class is unknown.
    """
    kind = type(model).__name__
    if type(model) not in MODELS:
        known = list_known(cls.__name__ for cls in MODELS)
        raise OptionError("model", f"{kind} of timm cannot be equipped; {known}")
    found: Any = model  # timm's attributes have no types
    for block in found.blocks:
        attention = getattr(block, "attn", None)
        if type(attention) not in ATTENTIONS:
            problem = f"blocks of {type(block).__name__} with {type(attention).__name__}"
            raise OptionError("model", f"{problem} are not supported")
    if found.patch_drop is not None and not isinstance(found.patch_drop, nn.Identity):
        raise OptionError(
            "model", "patch_drop_rate drops patches, whose positions are unknown then"
        )


def _read_mask(mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Check a mask, and return it as bool [1|B, 1, N, N]."""
    if is_causal:
        problem = "images have no order of tokens: is_causal is not supported"
        raise OptionError("is_causal", problem)
    if mask is None:
        return None
    if mask.dtype != torch.bool or (mask.ndim == 4 and mask.shape[1] != 1):
        problem = "an equipped model accepts a bool mask [N, N] or [B, 1, N, N]"
        raise OptionError("attn_mask", problem)
    return mask.reshape(-1, 1, *mask.shape[-2:])
