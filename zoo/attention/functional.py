"""Functions and a layer that compute attention with an encoding.

Shapes: B batch, H query heads, G key-value heads, N queries, M keys, K head dim, V value dim, D
model dim, P axes. If N < M, the queries are the last N of the M tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from zoo.attention.backends import dispatch, fused, reference
from zoo.attention.backends.fused import ScoreMod
from zoo.attention.call import AttentionCall, repeat_kv_heads
from zoo.attention.chain import Chain, check_coordinates_known, encoding
from zoo.attention.coordinates import grid, grid_shape, set_known_range
from zoo.attention.encoding import (
    Dims,
    Encoding,
    check_coordinates,
    check_heads,
    check_per_token,
    explain_types,
)
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.soft_cap import check_softcap
from zoo.attention.temperature import TemperatureSpec, read_temperature
from zoo.attention.tokens import (
    Tokens,
    check_documents,
    check_switch,
    check_tensor,
    document_lengths,
    document_positions,
    has_values,
    upcast,
)
from zoo.errors import OptionError, refuse_type
from zoo.options import EncodingSpec
from zoo.suggestions import join_words


@torch.no_grad()
def embed(encoding: Encoding, x: Tensor, pos: Tensor) -> Tensor:
    """Apply an encoding to input embeddings, in evaluation mode and without gradients.

    Args:
        encoding: The encoding, from `zoo.encoding`.
        x: Input embeddings [B, N, D].
        pos: Coordinates [N, P] or [B, N, P], used as given, without a convention.

    Returns:
        The embeddings [B, N, D] that enter the first layer; `x` itself if nothing is added to it.

    Raises:
        OptionError: `pos` does not have the encoding's number of axes.
    """
    training = encoding.training
    try:
        check_tensor("x", x, [None, None, encoding.dims.dim], kind="floating")
        tokens = Tokens.at(x, check_coordinates(encoding.dims, pos, ("x", x)))
        with explain_types(encoding, x=x, pos=pos):
            return Chain.of(encoding.eval()).embed(tokens).x
    finally:
        encoding.train(training)


def scores(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    *,
    x: Tensor | None = None,
    causal: bool = False,
    has_position: Tensor | None = None,
    document: Tensor | None = None,
    softcap: float | None = None,
    temperature: TemperatureSpec | None = None,
) -> Tensor:
    """Compute exact attention scores, as they enter the softmax: scaled, biased and transformed.

    Args:
        encoding: The encoding, from `zoo.encoding`.
        q: Projected queries [B, H, N, K], before any encoding.
        k: Projected keys [B, G, M, K], before any encoding; G is `Dims.kv_heads` or H.
        pos: Coordinates [M, P] or [B, M, P], used as given, without a convention.
        x: Token states [B, M, D], which encodings that declare `reads_states` need.
        causal: Hide keys after their query.
        has_position: Booleans [M] or [B, M], false for special tokens; all true by default.
        document: Document numbers [M] or [B, M] of packed sequences, -1 for padding; a token sees
            its own document only. `pos` is used as given: let it restart where documents do.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases; None: no bound.
        temperature: Factors of queries that grow with the position, as a mapping such as
            {"floor": 8192, "scale": 0.1}; None: no factors.

    Returns:
        Scores [B, H, N, M]; hidden pairs are -inf.

    Raises:
        OptionError: `pos` does not have the encoding's number of axes, or `k` its number of heads,
            or the encoding reads states and `x` is missing.
    """
    with explain_types(encoding, q=q, k=k, x=x, pos=pos):
        call = _describe_call(
            encoding,
            q,
            k,
            None,
            pos,
            x,
            causal,
            has_position,
            document,
            softcap,
            temperature=temperature,
        )
        return reference.scores(call)


def weights(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    *,
    x: Tensor | None = None,
    causal: bool = False,
    has_position: Tensor | None = None,
    document: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    temperature: TemperatureSpec | None = None,
) -> Tensor:
    """Compute exact attention weights.

    Args:
        encoding: The encoding, from `zoo.encoding`.
        q: Projected queries [B, H, N, K], before any encoding.
        k: Projected keys [B, G, M, K], before any encoding; G is `Dims.kv_heads` or H.
        pos: Coordinates [M, P] or [B, M, P], used as given, without a convention.
        x: Token states [B, M, D], which encodings that declare `reads_states` need.
        causal: Hide keys after their query.
        has_position: Booleans [M] or [B, M], false for special tokens; all true by default.
        document: Document numbers [M] or [B, M] of packed sequences, -1 for padding; a token sees
            its own document only. `pos` is used as given: let it restart where documents do.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases; None: no bound.
        sinks: Scores [H] of one more key per head, which joins the softmax and has no value.
        temperature: Factors of queries that grow with the position, as a mapping such as
            {"floor": 8192, "scale": 0.1}; None: no factors.

    Returns:
        Weights [B, H, N, M]; hidden pairs are 0.

    Raises:
        OptionError: `pos` does not have the encoding's number of axes, or `k` its number of heads,
            or the encoding reads states and `x` is missing.
    """
    with explain_types(encoding, q=q, k=k, x=x, pos=pos):
        call = _describe_call(
            encoding,
            q,
            k,
            None,
            pos,
            x,
            causal,
            has_position,
            document,
            softcap,
            sinks,
            temperature,
        )
        return reference.weights(call)


def attend(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos: Tensor,
    *,
    x: Tensor | None = None,
    causal: bool = False,
    has_position: Tensor | None = None,
    document: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    temperature: TemperatureSpec | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute attention.

    Args:
        encoding: The encoding, from `zoo.encoding`.
        q: Projected queries [B, H, N, K], before any encoding.
        k: Projected keys [B, G, M, K], before any encoding; G is `Dims.kv_heads` or H.
        v: Projected values [B, G, M, V].
        pos: Coordinates [M, P] or [B, M, P], used as given, without a convention.
        x: Token states [B, M, D], which encodings that declare `reads_states` need.
        causal: Hide keys after their query.
        has_position: Booleans [M] or [B, M], false for special tokens; all true by default.
        document: Document numbers [M] or [B, M] of packed sequences, -1 for padding; a token sees
            its own document only. `pos` is used as given: let it restart where documents do.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases; None: no bound.
        sinks: Scores [H] of one more key per head, which joins the softmax and has no value.
        temperature: Factors of queries that grow with the position, as a mapping such as
            {"floor": 8192, "scale": 0.1}; None: no factors.
        backend: "auto", "reference", "chunked", "sdpa" or "flex".

    Returns:
        The output [B, H, N, V].

    Raises:
        OptionError: `pos` does not have the encoding's number of axes, `k` has another number of
            heads, the encoding reads states and `x` is missing, or the backend cannot compute this
            call.
    """
    check_tensor("v", v, [None] * 4, kind="floating")
    with explain_types(encoding, q=q, k=k, x=x, pos=pos):
        call = _describe_call(
            encoding, q, k, v, pos, x, causal, has_position, document, softcap, sinks, temperature
        )
        out, _ = dispatch.attend(call, backend)
    return out


def score_mod(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    *,
    x: Tensor | None = None,
    causal: bool = False,
    has_position: Tensor | None = None,
    document: Tensor | None = None,
    softcap: float | None = None,
) -> ScoreMod:
    """Make a score_mod of an encoding that is a bias.

    FlexAttention with this score_mod computes the same as `zoo.functional.attend`.

    Args:
        encoding: The encoding, from `zoo.encoding`.
        q: Projected queries [B, H, N, K].
        k: Projected keys [B, G, M, K].
        pos: Coordinates [M, P] or [B, M, P].
        x: Token states [B, M, D], which encodings that declare `reads_states` need.
        causal: Whether a causal mask is used, for example one from `zoo.functional.block_mask`.
        has_position: Booleans [M] or [B, M], false for special tokens; all true by default.
        document: Document numbers [M] or [B, M] of packed sequences, -1 for padding; a token sees
            its own document only. `pos` is used as given: let it restart where documents do.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases; None: no bound.

    Returns:
        A function (score, b, h, q_idx, kv_idx) -> score. Gradients flow to the encoding, `q`, `k`
        and `x`.

    Raises:
        OptionError: The encoding does more than add a bias; the message says what. Or it reads
            states, and `x` is missing.
    """
    chain = Chain.of(encoding)
    name = join_words(link.name for link in chain)
    check_heads(chain.dims, q, k, None, x)
    if x is None:
        x = _fill_states(chain, k)
    call = _describe_call(encoding, q, k, None, pos, x, causal, has_position, document, softcap)
    # A score_mod sees scores only: what an encoding adds to the input would be lost silently.
    if call.keys.x is not x:
        message = f"{name} adds to the input of each layer; use zoo.Attention"
        raise OptionError("encoding", message)
    if embed(encoding, x, pos) is not x:
        message = f"{name} adds to the input; use zoo.functional.embed before attention"
        raise OptionError("encoding", message)
    if readers := chain.readers_of_earlier_keys:
        message = f"{join_words(readers)} changes keys, which a score_mod cannot"
        raise OptionError("encoding", f"{message}; {fused.ELSE}")
    return fused.make_score_mod(call, q, name)


def _describe_call(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    pos: Tensor,
    x: Tensor | None,
    causal: bool,
    has_position: Tensor | None,
    document: Tensor | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    temperature: TemperatureSpec | None = None,
) -> AttentionCall:
    """Describe the attention of projected heads, as `SelfAttention.describe` does in a model."""
    chain = Chain.of(encoding)
    heads = chain.dims.heads
    check_heads(chain.dims, q, k, v, x)
    if x is None:
        x = _fill_states(chain, k)
    check_switch("causal", causal)
    keys = ("k", k)
    check_per_token("has_position", has_position, "boolean", keys)
    pos = check_coordinates(chain.dims, pos, keys, has_position)
    # Integer and half-precision coordinates would round angles and distances.
    pos = pos.to(torch.promote_types(torch.promote_types(pos.dtype, q.dtype), torch.float32))
    check_per_token("document", document, "integer", keys)
    if softcap is not None:
        check_softcap(softcap)
    if sinks is not None:
        check_tensor("sinks", sinks, [heads], kind="floating", like=keys)
    factors = read_temperature(temperature)
    if factors is not None:
        factors.check_axes(chain.dims.axes)

    # Coordinates of packed sequences restart, so they are not in order.
    ordered = document is None and _is_ordered(pos)
    tokens = Tokens.at(x, pos, has_position, document, ordered)
    # `embed` runs only for the tables that it makes: `x` are the states of this layer, which
    # already contain what an encoding adds to the input of the first one.
    tokens = chain.prepare(chain.embed(tokens).replace(x=x))
    queries = tokens.last(q.shape[2])
    transformed = chain.transform_query(q, queries)
    if factors is not None:
        transformed, q = (factors.scale_queries(vectors, queries) for vectors in (transformed, q))
    # Without values, scores or weights are computed, which their rotation does not change.
    turns = chain.turn_values and v is not None
    values = k if v is None else chain.transform_value(v, tokens) if turns else v
    call = AttentionCall(
        transformed,
        repeat_kv_heads(chain.transform_key(k, tokens), heads),
        repeat_kv_heads(values, heads),
        q,
        queries,
        tokens,
        causal,
        q.shape[-1] ** -0.5,
        softcap=softcap,
        sinks=sinks,
        transform_output=chain.describe_output(queries) if turns else None,
        transform_query=lambda x: chain.transform_query(x, queries),
    )
    return chain.modify(call)


def _fill_states(chain: Chain, k: Tensor) -> Tensor:
    """Return states that no encoding reads, for keys [B, G, M, K].

    Raises:
        OptionError: An encoding reads states.
    """
    readers = [encoding.name for encoding in chain if encoding.reads_states]
    if readers:
        verb = "reads" if len(readers) == 1 else "read"
        message = f"{join_words(readers)} {verb} the states of tokens, not only their heads"
        hint = "pass x, the states [B, M, D] from which queries and keys are projected"
        raise OptionError("x", f"{message}; {hint}")
    # An encoding that reads them without declaring it gives NaN, and no wrong number.
    return k.new_full((), torch.nan).expand(k.shape[0], k.shape[2], chain.dims.dim)


def _is_ordered(pos: Tensor) -> bool:
    """Return whether coordinates [.., N, P] never decrease.

    A meta tensor has no values and a compiler hides them. The answer is then False, which is
    always safe: it only disables shortcuts.
    """
    return has_values(pos) and bool((pos.diff(dim=-2) >= 0).all())


class Attention(nn.Module):
    """A self-attention layer with a positional encoding, for use in any model.

    >>> layer = Attention(Dims(64, heads=4, axes=2, length=(14, 14)), "comrope_ld")
    >>> layer(torch.randn(2, 196, 64)).shape
    torch.Size([2, 196, 64])

    Without `pos`, tokens are the grid `dims.length` or, with one axis, a sequence of any length
    that starts at 0 in each document and continues where `context` ended.

    Args:
        dims: The sizes of the model. A few encodings depend on `dims.layer` and `dims.depth`.
        encoding: A name, a mapping with options, a list of these, or an existing encoding.
        causal: Hide keys after their query.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases; None: no bound.
        sinks: Add a learned score per head to the denominator of the softmax. The parameter is
            `layer.sinks` [H].
        temperature: Factors of queries that grow with the position, as a mapping such as
            {"floor": 8192, "scale": 0.1}; None: no factors.

    Raises:
        OptionError: The encoding is unknown, or an option does not fit the others.
    """

    def __init__(
        self,
        dims: Dims,
        encoding: EncodingSpec | Sequence[EncodingSpec] | Encoding,
        *,
        causal: bool = False,
        softcap: float | None = None,
        sinks: bool = False,
        temperature: TemperatureSpec | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(dims, Dims):
            raise refuse_type("dims", dims, "zoo.Dims")
        check_switch("causal", causal)
        check_switch("sinks", sinks)
        dims = replace(dims, depth=dims.depth or dims.layer + 1)
        if not isinstance(encoding, Encoding):
            encoding = _make_encoding(encoding, dims)
        if encoding.causal_only and not causal:
            message = f"{encoding.name} needs a causal mask: Attention(..., causal=True)"
            raise OptionError("causal", message)
        if encoding.needs_full_sequence and causal:
            message = "with these options the encoding reads the whole sequence"
            raise OptionError("causal", f"{message}: Attention(..., causal=False)")
        if causal:
            check_coordinates_known(Chain.of(encoding))
        self.encoding = encoding
        # In a tuple, torch does not see the chain as a submodule, so that the parameters of
        # `encoding` are registered only once.
        self._chain = (Chain.of(encoding),)
        self.layer = SelfAttention(
            dims,
            causal=causal,
            softcap=softcap,
            sinks=sinks,
            temperature=read_temperature(temperature),
        )

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        *,
        has_position: Tensor | None = None,
        document: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Compute self-attention.

        Args:
            x: Token states [B, N, D].
            pos: Coordinates [N, P] or [B, N, P], used as given; by default, grid indices under the
                encoding's convention.
            has_position: Booleans [N] or [B, N], false for special tokens; all true by default.
            document: Document numbers [N] or [B, N] of packed sequences, -1 for padding.
            context: A `KeyValueCache` or `SegmentMemory` that holds earlier tokens.

        Returns:
            The output [B, N, D].

        Raises:
            OptionError: `pos` does not have the encoding's axes, tokens and grid do not match, or
                `context` is no context.
        """
        check_tensor("x", x, [None, None, self.layer.dims.dim], kind="floating")
        check_per_token("has_position", has_position, "boolean", ("x", x))
        check_per_token("document", document, "integer", ("x", x))
        # not by `or`: a tensor has no truth value
        if context is None:
            context = Context()
        elif not isinstance(context, Context):
            raise refuse_type("context", context, "a KeyValueCache or a SegmentMemory")
        if pos is None:
            tokens = self._make_tokens(x, has_position, document, context.seen)
        else:
            pos = check_coordinates(self.encoding.dims, pos, ("x", x), has_position)
            # The positions of remembered tokens are unknown here and may be ahead of these.
            ordered = document is None and not context.seen and _is_ordered(pos)
            tokens = Tokens.at(x, pos, has_position, document, ordered)
        (chain,) = self._chain
        with explain_types(self, x=x, pos=pos):
            tokens, _ = self.layer(chain.embed(tokens), chain, context)
        return tokens.x

    def _make_tokens(
        self, x: Tensor, has_position: Tensor | None, document: Tensor | None, seen: int
    ) -> Tokens:
        """Make tokens without given positions: of documents, of a sequence, or of a grid."""
        dims, count = self.layer.dims, x.shape[1]
        is_text = dims.axes == 1
        if document is not None and is_text:
            if seen:
                message = "documents that follow remembered tokens need positions; pass pos"
                raise OptionError("pos", message)
            # Positions restart at 0 in each document, and each has a size of its own: [1|B, N, 1].
            document = document if document.dim() == 2 else document[None]
            check_documents(document)
            index = document_positions(document)[..., None].to(upcast(x).dtype)
            size = document_lengths(document)[..., None].to(index.dtype)
            tokens = Tokens.at(x, index, has_position, document).replace(grid_size=size)
            set_known_range(tokens.pos, 0, count - 1)
            return tokens

        # A sequence continues after the remembered tokens; a grid has the training size.
        sizes = (seen + count,) if is_text else dims.sizes
        pos = grid(sizes, x)[seen:]
        if len(pos) != count:
            message = f"{count} tokens are not the grid {dims.length}"
            raise OptionError("pos", f"{message}; pass their coordinates as pos")
        tokens = Tokens.at(x, pos, has_position, document, ordered=is_text)
        if is_text:
            set_known_range(tokens.pos, seen, seen + count - 1)
        return tokens.replace(grid_size=grid_shape(sizes, tokens.pos), consecutive=is_text)


# Arguments named `encoding` shadow the function in `Attention`.
_make_encoding = encoding
