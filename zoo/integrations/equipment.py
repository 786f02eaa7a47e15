"""The encodings of an equipped model, its attention, and reversible changes of a model.

This module is independent of the library of the model. An adapter finds the layers of a model,
calls `Equipment.begin` before the first of them, `Equipment.enter_layer` before each attention, and
`Layer.attend` in place of the attention.

Shapes: B batch, H query heads, G key-value heads, N queries, M keys, K head dim, V value dim, D
model dim, P axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.backends import reference
from zoo.attention.backends.dispatch import attend
from zoo.attention.backends.fused import attend_plain
from zoo.attention.call import AttentionCall, bias_from_table, repeat_kv_heads
from zoo.attention.chain import Chain, build_chains, carries_data, embed_groups, list_links
from zoo.attention.coordinates import PositionAugmentation, grid, grid_shape
from zoo.attention.encoding import Dims, EncodingFactory
from zoo.attention.layer import AttentionInput, Encoded
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens, is_transformed
from zoo.errors import OptionError
from zoo.suggestions import join_words


@dataclass
class ForwardPass:
    """The data that one forward pass of an equipped model passes from layer to layer."""

    grid_size: tuple[int, ...] | None = None
    """Number of patches along each axis of the images in this pass; None for text."""

    positions: Tensor | None = None
    """Positions that the caller of the model gave, int [1|B, N], or None."""

    mask: Any = None
    """The mask that the caller of the model gave."""

    is_packed: bool = False
    """Whether positions that restart are the beginning of another text."""

    has_mask_of_pairs: bool = False
    """Whether the caller of the model gave a mask of pairs of tokens."""

    has_whole_mask: bool = False
    """Whether this mask alone says what is visible, instead of narrowing a causal mask."""

    tokens: Mapping[int, Tokens] | None = None
    """The tokens at the input of the first layer, without states, by `Chain.group`."""

    leaves: Mapping[int, Tokens] | None = None
    """The same tokens with tables that are leaves of the graph, for recomputed layers. None: no
    table has a gradient."""

    is_recomputed: bool = False
    """Whether layers ran without gradients, so that the backward pass computes them again."""

    has_gradients: bool = False
    """Whether gradients are recorded before the first layer."""

    carried: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """Values per token that leave a layer for the next one, by its number, where encodings carry
    data from layer to layer."""

    def find_tokens(self, group: int) -> Tokens:
        """Return the tokens that enter a layer of a group, without states."""
        assert self.tokens is not None, "begin was not called"
        if self.leaves is None or torch.compiler.is_compiling():
            return self.tokens[group]
        # Reentrant checkpointing runs a layer without gradients, then again in the backward pass.
        if not torch.is_grad_enabled():
            self.is_recomputed = True
        is_backward = torch._C._current_graph_task_id() >= 0
        return (self.leaves if self.is_recomputed and is_backward else self.tokens)[group]

    def __reduce__(self) -> tuple[type[ForwardPass], tuple[()]]:
        # A copy of a model has had no pass yet, and tensors with a gradient cannot be copied.
        return ForwardPass, ()


@dataclass(frozen=True)
class TurnedChannels:
    """The channels of a head that a model rotates.

    Attributes:
        start: The first of them.
        stop: The one after the last.
        halves: Whether pairs are (i, i + R/2), and not neighbours (2i, 2i + 1), of R channels.
    """

    start: int
    stop: int
    halves: bool

    @property
    def width(self) -> int:
        """Number of rotated channels R."""
        return self.stop - self.start

    def order(self, heads: Tensor) -> Tensor:
        """Move the rotated channels of heads [B, H, N, K] to the front, as neighbours.

        The order of channels changes no product of queries and keys.
        """
        before, turned, after = heads.split(
            (self.start, self.width, heads.shape[-1] - self.stop), dim=-1
        )
        if self.halves:
            turned = _interleave(turned)
        rest = [part for part in (before, after) if part.shape[-1]]
        return torch.cat([turned, *rest], dim=-1) if rest else turned


def spread_axes(sizes: Sequence[Dims], axes: int) -> tuple[Dims, ...]:
    """Return sizes of layers whose tokens have positions on so many axes, in place of one."""
    return tuple(
        replace(one, axes=axes, length=None if one.length is None else (one.tokens,) * axes)
        if one.axes == 1 < axes
        else one
        for one in sizes
    )


@dataclass
class Layer:
    """One attention layer in one forward pass: its encodings and its tokens."""

    chain: Chain
    tokens: Tokens
    causal: bool
    backend: str
    turned: TurnedChannels | None
    """The channels that the model rotates, which the encodings rotate in their place."""
    keys: Tokens | None = None
    """The tokens of all keys after a cache has joined them; None without a cache."""
    hooks: Sequence[Callable[[AttentionInput], None]] = ()
    """Receive the attention before it is computed."""
    output_hooks: Sequence[Callable[[int, Tensor], Tensor]] = ()
    """Change the outputs of heads [B, H, N, V]."""
    has_whole_mask: bool = False
    """Whether a mask alone says what is visible, also in a causal model."""
    has_mask_of_pairs: bool = False
    """Whether the caller of the model gave a mask of pairs of tokens."""
    temperature: Temperature | None = None
    """Factors of queries that grow with the position."""
    keeps_bias: bool = False
    """Whether a bias that the model adds itself stays."""
    caches_latents: bool = False
    """Whether a cache stores what keys are made of, so that all keys come before any encoding."""
    forward_pass: ForwardPass | None = None
    """The pass that the layer is in."""
    extra: Tensor | None = None
    """The averages of extra values [B, H, N, E] once the attention is computed, or None."""

    def transform_key(self, k: Tensor) -> Tensor:
        """Transform new keys [B, G, N, K] before they are cached."""
        return self.chain.transform_key(self._order_channels(k), self.tokens)

    def transform_value(self, v: Tensor) -> Tensor:
        """Transform new values [B, G, N, V] before they are cached."""
        return self.chain.transform_value(v, self.tokens) if self.chain.turn_values else v

    def describe(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> AttentionCall:
        """Describe the attention of this layer, without computing it.

        Args:
            q: Queries [B, H, N, K] of the new tokens, before any encoding.
            k: Keys [B, G, M, K], from the cache, or before any encoding if there is no cache.
            v: Values [B, G, M, V].
            scale: Factor of the products of queries and keys; None: K^-1/2.
            mask: Attention mask, bool [1|B, 1, N, M], in addition to the causal one.
            dropout: Dropout of attention weights.
            softcap: Bound of the scaled products of queries and keys; None: no bound.
            sinks: Scores [H] that take part in the softmax and have no value.
            bias: A bias of the model itself [1|B, 1|H, N, M], added to the products.
        """
        k = self._prepare_key(k)
        keys = self.tokens if self.keys is None else self.keys
        describe = partial(
            self._describe,
            self._prepare_query(q),
            k,
            self._prepare_value(v),
            keys,
            scale,
            mask,
            dropout,
            softcap,
            sinks,
            bias,
        )
        if self.hooks:
            tokens = self._find_documents(mask)
            for hook in self.hooks:
                hook(AttentionInput(self.chain.dims.layer, tokens, self.chain, describe))
        return describe()

    def _find_documents(self, mask: Tensor | None) -> Tokens:
        """Return the tokens with the documents and the padding that a mask of pairs tells apart."""
        tokens, count = self.tokens, self.tokens.x.shape[1]
        is_square = mask is not None and mask.shape[2] == count <= mask.shape[3]
        if mask is None or not is_square or not self.has_mask_of_pairs:
            return tokens
        # An adapter that has found several documents knows more than the mask of one layer.
        if tokens.document is not None and tokens.document.max() > 0:
            return tokens
        document, _ = read_documents(mask[:, 0, :, :count], is_mutual=not self.causal)
        if tokens.document is not None:
            document = torch.where(tokens.document < 0, -1, document)
        return tokens.replace(document=document)

    def _describe(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tokens,
        scale: float | None,
        mask: Tensor | None,
        dropout: float,
        softcap: float | None,
        sinks: Tensor | None,
        bias: Tensor | None = None,
        query_index: Tensor | None = None,
    ) -> AttentionCall:
        tokens, count, heads = self.tokens, keys.x.shape[1], q.shape[1]
        is_causal = self.causal and not (self.has_whole_mask and mask is not None)
        # A static cache also returns the rows that are not in use yet.
        if k.shape[2] > count:
            k, v = k[:, :, :count], v[:, :, :count]
        mask = None if mask is None else mask[..., :count]
        # Tokens that left a sliding window, on whose data others depend, stand for hidden keys.
        if k.shape[2] < count:
            k, v, mask = _add_hidden_keys(q, k, v, mask, count - k.shape[2])
        if query_index is not None:
            q, tokens = q[:, :, query_index], tokens.select(query_index)
            if mask is not None and mask.shape[2] > 1:
                mask = mask[:, :, query_index]
            bias = None if bias is None else bias[:, :, query_index]
        # The model's mask alone says what a query sees, also one that is masked itself.
        queries = tokens.replace(document=None)
        call = AttentionCall(
            self.chain.transform_query(q, tokens),
            repeat_kv_heads(k, heads),
            repeat_kv_heads(v, heads),
            q,
            queries,
            keys,
            is_causal,
            q.shape[-1] ** -0.5 if scale is None else scale,
            softcap=softcap,
            sinks=sinks,
            transform_output=self.chain.describe_output(tokens),
            transform_query=lambda x: self.chain.transform_query(x, tokens),
            query_index=query_index,
            mask=mask,
            dropout=dropout,
        )
        if bias is not None:
            call = call.add_bias(bias_from_table(bias[..., :count]))
        return self.chain.modify(call)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute the output [B, H, N, V]. The arguments are those of `describe`."""
        is_changed = any(one is not None for one in (softcap, sinks, bias))
        if is_changed or not self._is_plain(q, k, mask):
            call = self.describe(
                q,
                k,
                v,
                scale=scale,
                mask=mask,
                dropout=dropout,
                softcap=softcap,
                sinks=sinks,
                bias=bias,
            )
            return self.attend_call(call)

        # The fast path: encodings only transform queries and keys. They may make heads wider, which
        # does not change the scale.
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        k = self._prepare_key(k)
        if mask is not None:
            mask = mask[..., : k.shape[2]]
        q = self.chain.transform_query(self._prepare_query(q), self.tokens)
        is_causal = self.causal and q.shape[2] > 1
        out = attend_plain(q, k, v, scale=scale, is_causal=is_causal, mask=mask, dropout=dropout)
        return self._pass_output(out)

    def attend_call(self, call: AttentionCall) -> Tensor:
        """Compute the output [B, H, N, V] of a call."""
        out, self.extra = attend(call, self.backend)
        return self._pass_output(out)

    def _pass_output(self, out: Tensor) -> Tensor:
        """Pass the outputs of heads [B, H, N, V] through the hooks."""
        for hook in self.output_hooks:
            out = hook(self.chain.dims.layer, out)
        return out

    def _is_plain(self, q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
        """Return whether the attention needs only q, k and v, so that no call must be described."""
        if (
            self.chain.turn_values
            or self.chain.modifies_calls
            or self.hooks
            or self.backend not in ("auto", "sdpa")
        ):
            return False
        # SDPA's causal mask needs as many queries as keys; a single query needs no causal mask.
        count = q.shape[2]
        is_square = mask is None and count == k.shape[2]
        return q.numel() > 0 and (count == 1 or is_square)

    def weights(self, call: AttentionCall) -> Tensor:
        """Compute the attention weights [B, H, N, M] of a call in the dtype of its values."""
        return reference.weights(call).to(call.v.dtype)

    def _prepare_key(self, k: Tensor) -> Tensor:
        """Return keys [B, G, M, K] with encodings, which those of a cache have already."""
        if self.keys is None:
            if k.shape[2] != self.tokens.x.shape[1]:
                problem = "the attention reads keys that no cache has handed over"
                raise OptionError("cache", f"{problem}; pass use_cache=False")
            return self.transform_key(k)
        if self.caches_latents:
            return self.chain.transform_key(self._order_channels(k), self.keys)
        return k

    def _prepare_value(self, v: Tensor) -> Tensor:
        """Return values [B, G, M, V] with encodings, which those of a cache have already."""
        if self.keys is None:
            return self.transform_value(v)
        if self.caches_latents and self.chain.turn_values:
            return self.chain.transform_value(v, self.keys)
        return v

    def _prepare_query(self, q: Tensor) -> Tensor:
        """Return queries with their temperature, and their channels in the order of zoo."""
        if self.temperature is not None:
            q = self.temperature.scale_queries(q, self.tokens)
        return self._order_channels(q)

    def _order_channels(self, heads: Tensor) -> Tensor:
        return heads if self.turned is None else self.turned.order(heads)


def _add_hidden_keys(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Put keys that no query sees before keys and values [B, G, M, ..], and make their mask."""
    if mask is None:
        mask = k.new_ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
    k, v = (F.pad(heads, (0, 0, count, 0)) for heads in (k, v))
    return k, v, F.pad(mask, (count, 0), value=False)


def _interleave(heads: Tensor) -> Tensor:
    """Move channels i and i + R/2 of heads [B, H, N, R] to 2i and 2i + 1."""
    batch, count, tokens, width = heads.shape
    halves = heads.view(batch, count, tokens, 2, width // 2)
    return halves.mT.reshape(batch, count, tokens, width)


def read_documents(visible: Tensor, *, is_mutual: bool) -> tuple[Tensor, Tensor]:
    """Read the documents of tokens from a mask of pairs.

    A token that no query sees is padding. A document begins where a token and the last one before
    it, padding aside, do not see each other.

    Args:
        visible: True where a query may attend to a key, bool [B, N, M]; the last N of the keys are
            the tokens of the queries.
        is_mutual: Whether it is enough that the last token sees this one, as without a causal mask.

    Returns:
        Document numbers int [B, N], -1 for padding; and where a document begins after another one,
        bool [B, N].
    """
    batch, count, total = visible.shape
    is_real = visible.any(1)
    places = torch.arange(total, device=visible.device).expand(batch, -1)
    # The index of the last token before each that is not padding, -1 for none.
    last = torch.where(is_real, places, -1).cummax(-1).values.roll(1, -1)
    last[:, 0] = -1
    last, is_real = last[:, -count:], is_real[:, -count:]
    sees_last = visible.gather(-1, last.clamp(min=0)[..., None])[..., 0]
    if is_mutual:
        # Row of the last token, column of this one.
        rows = (last - (total - count)).clamp(min=0)
        sees_next = visible[..., -count:].gather(1, rows[:, None])[:, 0]
        sees_last = sees_last | sees_next
    is_cut = is_real & ~sees_last & (last >= 0)
    is_first = is_cut | (is_real & (last < 0))
    # The first of the tokens may continue the document of earlier keys.
    numbers = (is_first.long().cumsum(-1) - 1).clamp(min=0)
    return torch.where(is_real, numbers, -1), is_cut


class Equipment(nn.Module, Encoded):
    """The encodings of a model by name, and the chain of each layer.

    Args:
        dims: Sizes of a layer; `dims.depth` is the number of layers.
        factories: The encodings by name, each a function of the sizes of its layer.
        causal: Whether the model has a causal mask.
        turned: For each layer, the channels that the model rotates, or None; empty: all channels,
            as neighbours.
        sizes: The sizes of each layer; empty: those of `dims`.
        without_position: Indices of the layers without encodings.
        backend: The attention backend, or "auto".
        equals_own: Whether the encodings are the model's own, so that nothing may change.
        keeps_positions: Whether the model keeps its own positions, and is only observed.
        by_layer: For each layer, the encodings that take the place of `factories`, or None.

    Raises:
        OptionError: An encoding does not fit the model.
    """

    calls_hooks = True

    def __init__(
        self,
        dims: Dims,
        factories: Mapping[str, EncodingFactory],
        *,
        causal: bool,
        turned: Sequence[TurnedChannels | None] = (),
        sizes: Sequence[Dims] = (),
        without_position: Sequence[int] = (),
        backend: str = "auto",
        equals_own: bool = False,
        keeps_positions: bool = False,
        by_layer: Sequence[Mapping[str, EncodingFactory] | None] = (),
    ) -> None:
        modules, chains = build_chains(
            dims, factories, causal=causal, by_layer=by_layer, sizes=sizes
        )
        super().__init__()
        # No nn.ModuleDict, which peft refuses to train and save beside its adapters.
        for name, module in modules.items():
            self.add_module(name, module)
        links = list_links(chains)
        self.carriers = tuple(one.name for one in links if carries_data(one))
        """Names of the encodings that carry data from layer to layer."""
        bare = [Chain(chain.dims, {}) for chain in chains]
        # In a tuple, torch does not see the chains as submodules, so that parameters are registered
        # only once.
        self.chains = tuple(
            bare[number] if number in without_position else chain
            for number, chain in enumerate(chains)
        )
        self.dims, self.causal, self.turned, self.backend = dims, causal, turned, backend
        self.equals_own, self.keeps_positions = equals_own, keeps_positions
        self.windowed: tuple[bool, ...] = ()  # for each layer; empty if no layer has a window
        self.temperatures: dict[int, Temperature] = {}  # by layer
        self.position_augmentation = PositionAugmentation()
        self.token_hooks, self.attention_hooks, self.output_hooks = [], [], []
        self.arguments: dict[str, Any] = {}  # the arguments of `zoo.equip`, which `zoo.save` writes

    def __getitem__(self, name: str) -> nn.Module:
        """Return the encoding with a name, or the list of one for each layer."""
        return self.get_submodule(name)

    def keys(self) -> list[str]:
        """Return the names of the encodings."""
        return [name for name, _ in self.named_children()]

    def begin(
        self,
        forward_pass: ForwardPass,
        x: Tensor,
        positions: Tensor | None,
        document: Tensor | None = None,
    ) -> Tensor:
        """Make the tokens of a forward pass, and apply encodings to the input of the first layer.

        Args:
            forward_pass: The pass, which stores the tokens for all layers.
            x: States [B, N, D] before the first layer.
            positions: Positions of text tokens, int [1|B, N]. None: the grid of the pass in
                row-major order, after tokens without a position (CLS and register tokens).
            document: Document numbers of text tokens, int [1|B, N], -1 for masked tokens. None: one
                document, no token is masked.

        Returns:
            The states with the encodings of the input [B, N, D].
        """
        tokens = self._make_tokens(forward_pass, x, positions, document)
        for hook in self.token_hooks:
            changed = hook(tokens)
            if self.keeps_positions and changed.index is not tokens.index:
                problem = "the model has its own positions, which zoo cannot change"
                raise OptionError("model", f"{problem}; equip it first")
            tokens = changed
        groups = self._embed(tokens)
        forward_pass.tokens = {group: one.drop_states() for group, one in groups.items()}
        forward_pass.has_gradients = torch.is_grad_enabled()
        states = next(iter(groups.values())).x.to(x.dtype)
        # A compiler does not recompute layers in this way.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            states, forward_pass.leaves = _collect_gradients(states, forward_pass.tokens)
        return states

    @property
    def reads_masks(self) -> bool:
        """True if the result depends on which tokens are masked, beyond their visibility."""
        return not self.causal or any(chain.modifies_calls for chain in self.chains)

    @property
    def needs_documents(self) -> bool:
        """True if documents and padding are looked up, for the encodings or for an observer."""
        return self.reads_masks or bool(self.token_hooks or self.attention_hooks)

    def enter_layer(self, forward_pass: ForwardPass, number: int, x: Tensor) -> Layer:
        """Prepare one attention of a forward pass.

        Args:
            forward_pass: The pass for which `begin` was called.
            number: Index of the layer.
            x: Input of the attention [B, N, D].

        Raises:
            OptionError: The layer before handed on nothing of what an encoding carries.
        """
        chain = self.chains[number]
        tokens = forward_pass.find_tokens(chain.group)
        if self.carriers and number:
            tokens = tokens.with_per_token(**self._find_carried(forward_pass, number))
        tokens = chain.prepare(tokens.replace(x=x))
        # If no encoding reads channels, their order does not matter.
        reads_channels = chain.transforms_heads or chain.modifies_calls
        turned = self.turned[number] if self.turned and reads_channels else None
        hooks = self.attention_hooks
        return Layer(
            chain,
            tokens,
            self.causal,
            self.backend,
            turned,
            hooks=hooks,
            output_hooks=self.output_hooks,
            has_whole_mask=forward_pass.has_whole_mask,
            has_mask_of_pairs=forward_pass.has_mask_of_pairs,
            temperature=self.temperatures.get(number),
            keeps_bias=self.equals_own,
            forward_pass=forward_pass,
        )

    def _find_carried(self, forward_pass: ForwardPass, number: int) -> Mapping[str, Tensor]:
        """Return the values per token that the layer before hands to a layer."""
        if number - 1 not in forward_pass.carried:
            names = join_words(self.carriers)
            problem = f"layer {number - 1} handed on nothing of what {names} carries"
            raise OptionError("model", f"{problem}; call the whole model, and not a layer of it")
        return forward_pass.carried[number - 1]

    def carry(self, layer: Layer, x: Tensor) -> None:
        """Change what the tokens of a layer hand to the next one.

        Args:
            layer: The layer, whose attention is computed.
            x: States [B, N, D] after attention.

        Raises:
            OptionError: The backward pass would not see what is carried.
        """
        forward_pass, tokens = layer.forward_pass, layer.tokens
        assert forward_pass is not None
        # What leaves a layer beside its states is no output that reentrant checkpointing knows.
        if forward_pass.has_gradients and not torch.is_grad_enabled():
            problem = f"reentrant checkpointing loses the gradients of {join_words(self.carriers)}"
            remedy = 'pass gradient_checkpointing_kwargs={"use_reentrant": False}'
            raise OptionError("use_reentrant", f"{problem}; {remedy}")
        if layer.extra is not None:
            tokens = layer.chain.after_attention(tokens.replace(x=x), layer.extra)
        # Without gradients, nothing is computed again.
        if not forward_pass.has_gradients:
            forward_pass.carried.clear()
        forward_pass.carried[layer.chain.dims.layer] = tokens.per_token

    def _embed(self, tokens: Tokens) -> dict[int, Tokens]:
        """Apply the encodings of the input; return the tokens of each group of layers."""
        # Layers without encodings read no tables, and see the tokens of others.
        full = [chain for chain in self.chains if chain._modules]
        firsts = {chain.group: chain for chain in reversed(full)}
        if len(firsts) > 1:
            groups = embed_groups(full, tokens)
        else:
            groups = {group: chain.embed(tokens) for group, chain in firsts.items()}
        shown = next(iter(groups.values()), tokens)
        return {chain.group: shown for chain in self.chains} | groups

    def _make_tokens(
        self,
        forward_pass: ForwardPass,
        x: Tensor,
        positions: Tensor | None,
        document: Tensor | None,
    ) -> Tokens:
        sizes = forward_pass.grid_size
        if sizes is None:
            assert positions is not None
            axes = self.dims.axes
            # A token of a text has the same position on all axes.
            pos = positions if positions.dim() == 3 else positions[..., None].expand(-1, -1, axes)
            pos = pos.to(torch.promote_types(x.dtype, torch.float32))
            tokens = Tokens.at(x, pos, None, document, ordered=self.causal and axes == 1)
            if self.causal:
                return tokens
            if document is None:
                return tokens.replace(grid_size=grid_shape((x.shape[1],), tokens.pos))
            # The length of a text is the number of its tokens that are not masked.
            count = (document >= 0).sum(1).clamp(min=1).to(tokens.pos.dtype)
            return tokens.replace(grid_size=count[:, None, None])

        # All tokens before the patches are special (CLS, registers) and placed at the origin.
        pos = grid(sizes, x)
        special = x.shape[1] - len(pos)
        if self.training:
            pos = self.position_augmentation(pos, len(x))  # [N, P] or [B, N, P]
        index = F.pad(pos, (0, 0, special, 0))
        has_position = None
        if special:
            has_position = torch.arange(x.shape[1], device=x.device) >= special
        tokens = Tokens.at(x, index, has_position)
        return tokens.replace(grid_size=grid_shape(sizes, tokens.pos))


def _collect_gradients(
    x: Tensor, groups: Mapping[int, Tokens]
) -> tuple[Tensor, Mapping[int, Tokens] | None]:
    """Make recomputed layers send the gradients of tables that they share to one place.

    Each layer that a reentrant checkpoint recomputes has a backward pass of its own. Through shared
    tables, all of them would reach the graph that made the tables, which only one may.

    Args:
        x: Input of the first layer [B, N, D].
        groups: The tokens of each group of layers.

    Returns:
        The input, whose backward pass follows that of all layers, and the tokens with leaves in
        place of tables; None without tables that have a gradient.
    """
    tables: list[Tensor] = []
    leaves: list[Tensor] = []

    def make_leaf(table: Tensor) -> Tensor:
        if not table.requires_grad:
            return table
        tables.append(table)
        leaves.append(table.detach().requires_grad_())
        return leaves[-1]

    found: dict[int, Tokens] = {}
    for group, tokens in groups.items():
        per_token = {name: make_leaf(values) for name, values in tokens.per_token.items()}
        shared = {name: tuple(map(make_leaf, one)) for name, one in tokens.shared_tables.items()}
        found[group] = tokens.replace(per_token=per_token, shared_tables=shared)
    if not tables or is_transformed(x, *tables):
        return x, None
    x = _PassGradients.apply(x, leaves, *tables)  # type: ignore[no-untyped-call]
    return x, found


class _PassGradients(torch.autograd.Function):
    """The identity, whose backward pass hands the gradients of leaves to the tables."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaves: list[Tensor], *tables: Tensor) -> Tensor:
        ctx.leaves = leaves
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = [leaf.grad for leaf in ctx.leaves]
        for leaf in ctx.leaves:
            leaf.grad = None
        return gradient, None, *found


NAME = "zoo_encoding"  # the submodule of an equipped model that contains its encodings


def is_equipped(model: nn.Module) -> bool:
    """Return whether a model has encodings of zoo."""
    return NAME in dict(model.named_children())


CHANGED = "zoo_is_changed"  # marks the modules of a model that an adapter changed


def find_changed(model: nn.Module) -> str | None:
    """Return the path of the first module with a change of `zoo.equip`, "" for the model itself.

    The model may be equipped, or contain an equipped part, or be a part of an equipped model.
    None: there is no change.
    """
    for path, module in model.named_modules():
        if CHANGED in vars(module):
            return path
    return None


def find_active(model: nn.Module, equipment: Equipment) -> Equipment:
    """Return the encodings that a model computes with.

    peft puts a wrapper in their place, which has a copy of them for each adapter, and the copy of
    the adapter stays when it is merged.

    Args:
        model: The equipped model.
        equipment: Its encodings when it was equipped.
    """
    found: Any = model._modules.get(NAME)
    if found is None or isinstance(found, Equipment):
        return found or equipment
    names = [] if found.disable_adapters else list(found.active_adapters)
    active = [found.modules_to_save[name] for name in names if name in found.modules_to_save]
    return active[0] if active else found.original_module


Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class Surgery:
    """A list of changes of a model that can be undone.

    Args:
        is_copy: Whether the model is a copy of the changed one. Only the original can be restored.
    """

    def __init__(self, is_copy: bool = False) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._is_copy = is_copy

    def __reduce__(self) -> tuple[type[Surgery], tuple[bool]]:
        # copy.deepcopy and pickle make a copy, which shares no modules with the original.
        return Surgery, (True,)

    def call(self, change: Callable[[], Any], *, undo: Callable[[], Any]) -> None:
        """Make a change, which `undo` reverts."""
        self._undo.append(undo)
        change()

    def hook(self, module: nn.Module, hook: Hook) -> None:
        """Call `hook` with arguments and keyword arguments before each forward pass of a module."""
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        self._undo.append(handle.remove)
        if CHANGED not in vars(module):
            self.add_attribute(module, CHANGED, True)

    def hook_output(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Call `hook` with arguments, keyword arguments and output after each forward pass."""
        handle = module.register_forward_hook(hook, with_kwargs=True)
        self._undo.append(handle.remove)

    def set_attribute(self, owner: object, name: str, value: object) -> None:
        """Change an existing attribute."""
        original = getattr(owner, name)
        self.call(lambda: setattr(owner, name, value), undo=lambda: setattr(owner, name, original))

    def add_attribute(self, owner: object, name: str, value: object) -> None:
        """Add an attribute to an object, which hides that of its class."""
        self.call(lambda: setattr(owner, name, value), undo=lambda: delattr(owner, name))

    def add_module(self, parent: nn.Module, name: str, module: nn.Module) -> None:
        """Register a new submodule."""
        self.call(lambda: parent.add_module(name, module), undo=lambda: delattr(parent, name))

    def zero_table(self, root: nn.Module, path: str) -> None:
        """Set the embedding or parameter at a dotted path to 0 and freeze it."""
        table = ZeroedTable(root, path)
        self.call(table.clear, undo=table.restore)
        handle = table.owner.register_load_state_dict_post_hook(table.keep_loaded)
        self._undo.append(handle.remove)
        self.hook(root, table.check)

    def forget(self, owner: nn.Module, name: str) -> None:
        """Remove an attribute, which passes of the equipped model set, when all is undone."""
        self._undo.append(lambda: vars(owner).pop(name, None))

    def undo(self) -> None:
        """Undo all changes, the last one first.

        Raises:
            OptionError: The model is a copy.
        """
        if self._is_copy:
            problem = "a copy of an equipped model, or a loaded one, cannot be unequipped"
            raise OptionError("model", f"{problem}; unequip the original")
        while self._undo:
            self._undo.pop()()


class ZeroedTable:
    """A table of positions that is 0 while its model is equipped.

    It becomes a buffer of the same name, which no optimizer and no `requires_grad_` reaches.

    Args:
        root: The model.
        path: The dotted path of an embedding or a parameter.
    """

    def __init__(self, root: nn.Module, path: str) -> None:
        parent, _, self.name = path.rpartition(".")
        owner = root.get_submodule(parent)
        found = getattr(owner, self.name)
        if isinstance(found, nn.Module):
            owner, self.name = found, "weight"
        self.path, self.parameter = path, getattr(owner, self.name)
        self.values = self.parameter.detach().clone()
        self._owner = (owner,)
        self._checked: tuple[int, int] | None = None

    @property
    def owner(self) -> nn.Module:
        """The module that has the table."""
        return self._owner[0]

    def clear(self) -> None:
        """Put a buffer of zeros in place of the parameter."""
        delattr(self.owner, self.name)
        self.owner.register_buffer(self.name, torch.zeros_like(self.values))

    def restore(self) -> None:
        """Put the parameter back, on the device and in the dtype that the model has now."""
        now = getattr(self.owner, self.name)
        delattr(self.owner, self.name)
        self.parameter.data = self.values.to(now)
        self.owner.register_parameter(self.name, self.parameter)

    def keep_loaded(self, owner: nn.Module, incompatible: Any) -> None:
        """Keep values that `load_state_dict` put into the table for the model without encodings."""
        loaded = getattr(owner, self.name)
        if loaded.any():
            self.values.copy_(loaded)
            loaded.detach().zero_()

    def check(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check before a forward pass that the table is 0.

        Raises:
            OptionError: Something wrote to it.
        """
        table = getattr(self.owner, self.name)
        if torch.compiler.is_compiling() or table.is_meta or table.is_inference():
            return
        # Reading all values may wait for a GPU, so they are read only after a tensor has changed.
        written = (id(table), table._version)
        if written == self._checked:
            return
        if table.any():
            problem = f"{self.path} was written to; it must be 0 in an equipped model"
            raise OptionError("model", f"{problem}; set it to 0, or call zoo.unequip first")
        self._checked = written
