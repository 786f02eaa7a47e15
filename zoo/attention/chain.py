"""A chain of encodings that a layer applies in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor, nn

from zoo.attention.call import AttentionCall
from zoo.attention.coordinates import apply_convention
from zoo.attention.encoding import Dims, Encoding, EncodingFactory
from zoo.attention.special_tokens import (
    place_at_origin,
    restore_heads,
    restore_states,
    restrict_to_positions,
)
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.reporting.panel import Panel

# Fields of a call that only one encoding of a chain may set: they cannot be combined.
EXCLUSIVE = ("transform_scores", "normalize", "extra_output", "extra_values")


class Chain(Encoding):
    """Encodings applied in order.

    Each encoding sees coordinates under its own convention. Tokens without a position (CLS,
    registers) are exempt: their queries and keys are not transformed and their pairs get no bias,
    unless the encoding handles such tokens itself.

    Args:
        dims: The sizes of a layer.
        encodings: The encodings by name.

    Raises:
        OptionError: Two encodings transform queries and keys.
    """

    def __init__(self, dims: Dims, encodings: Mapping[str, Encoding]) -> None:
        nn.Module.__init__(self)
        self.dims = dims
        for name, encoding in encodings.items():
            self.add_module(name, encoding)

        self.modifies_calls = any(map(_modifies_calls, encodings.values()))
        self.key_updaters = [n for n, one in encodings.items() if _updates_keys(one)]
        # Two transforms of queries and keys do not commute, and no paper defines their product.
        transformers = [
            n for n, one in encodings.items() if _updates_keys(one) or _transforms_queries(one)
        ]
        self.transforms_heads = bool(transformers)
        if len(transformers) > 1:
            problem = f"{' and '.join(transformers)} both transform queries and keys"
            raise OptionError("encoding", f"{problem}; list one of them")

        # The declared facts of a chain follow from those of its encodings.
        self.shared = all(one.shared for one in self)
        self.shift_invariant = all(one.shift_invariant for one in self)
        self.causal_only = any(one.causal_only for one in self)
        self.needs_full_sequence = any(one.needs_full_sequence for one in self)
        self.lookback = max((one.lookback for one in self), default=0)
        reasons = (one.no_export_reason for one in self)
        self.no_export_reason = next(filter(None, reasons), "")
        self.axes = (dims.axes,)
        self.handles_special_tokens = True  # the chain does it for each encoding
        self.zero_gradient = tuple(
            f"{name}.{parameter}"
            for name, encoding in encodings.items()
            for parameter in encoding.zero_gradient
        )

    def __iter__(self) -> Iterator[Encoding]:
        """Iterate over the encodings."""
        return iter(self._modules.values())  # type: ignore[arg-type]

    @classmethod
    def of(cls, encoding: Encoding) -> Chain:
        """Return the encoding if it is a chain, else a chain with this one encoding."""
        if isinstance(encoding, Chain):
            return encoding
        return cls(encoding.dims, {encoding.name or "encoding": encoding})

    def embed(self, tokens: Tokens) -> Tokens:
        """Call each encoding's `embed`; tokens without a position keep their states."""
        for encoding in self:
            new = encoding.embed(_localize(encoding, tokens))
            tokens = restore_states(encoding, tokens, new)
        return tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        """Call each encoding's `prepare`; tokens without a position keep their states."""
        for encoding in self:
            new = encoding.prepare(_localize(encoding, tokens))
            tokens = restore_states(encoding, tokens, new)
        return tokens

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Call each encoding's `transform_query` for tokens with a position."""
        for encoding in self:
            new = encoding.transform_query(q, _localize(encoding, tokens))
            q = restore_heads(encoding, q, new, tokens)
        return q

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Call each encoding's `transform_key` for tokens with a position."""
        for encoding in self:
            new = encoding.transform_key(k, _localize(encoding, tokens))
            k = restore_heads(encoding, k, new, tokens)
        return k

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        """Call each encoding's `update_cached_keys`."""
        for encoding in self:
            k, tokens = encoding.update_cached_keys(k, tokens)
        return k, tokens

    def modify(self, call: AttentionCall) -> AttentionCall:
        """Call each encoding's `modify` for pairs of tokens with a position.

        Raises:
            OptionError: The changes of two encodings contradict each other.
        """
        for encoding in filter(_modifies_calls, self):
            old = call.replace(
                queries=_localize(encoding, call.queries), keys=_localize(encoding, call.keys)
            )
            new = encoding.modify(old)
            _check_fields(encoding, old, new)
            self._check_keys(encoding, old, new)
            call = new if encoding.handles_special_tokens else restrict_to_positions(old, new)
        return call

    def after_attention(self, tokens: Tokens, extra: Tensor) -> Tokens:
        """Call each encoding's `after_attention`."""
        for encoding in self:
            tokens = encoding.after_attention(_localize(encoding, tokens), extra)
        return tokens

    def panels(self, call: AttentionCall) -> Iterable[Panel]:
        """Yield the panels of each encoding, with its name in their titles."""
        for encoding in self:
            queries, keys = _localize(encoding, call.queries), _localize(encoding, call.keys)
            for panel in encoding.panels(call.replace(queries=queries, keys=keys)):
                yield replace(panel, title=f"{encoding.name}: {panel.title}")

    def _check_keys(self, encoding: Encoding, old: AttentionCall, new: AttentionCall) -> None:
        """Refuse changes that depend on whether a cached key was updated already.

        An encoding with `update_cached_keys` (PaTH) multiplies keys again with every later token.
        Decoding and a full pass agree only if all others commute with these updates.
        """
        order = list(self)
        for name in self.key_updaters:
            if encoding.consumes_biases or encoding.reads_keys or new.k is not old.k:
                problem = f"{encoding.name} reads or changes keys, which {name} updates later"
                raise OptionError("encoding", f"{problem}; list one of them")
            is_later = order.index(encoding) > order.index(self._modules[name])  # type: ignore[arg-type]
            if is_later and (new.scale != old.scale or new.q is not old.q):
                problem = f"{encoding.name} changes what {name}, before it, has multiplied"
                raise OptionError("encoding", f"{problem}; list it first")


def build_chains(
    dims: Dims, factories: Mapping[str, EncodingFactory], *, causal: bool
) -> tuple[nn.ModuleDict, tuple[Chain, ...]]:
    """Build the encodings of a model and the chain of each layer.

    Args:
        dims: Sizes of a layer; `dims.depth` is the number of layers.
        factories: The encodings by name, each a function of the sizes of its layer.
        causal: Whether the model has a causal mask.

    Returns:
        The encodings by name (a module, or a list with one per layer if it is not shared), and the
        chains, which hold the same modules.

    Raises:
        OptionError: An encoding does not fit the model.
    """
    layers = [replace(dims, layer=layer) for layer in range(dims.depth or 1)]
    modules = nn.ModuleDict()
    by_layer: list[dict[str, Encoding]] = [{} for _ in layers]

    # The first instance declares whether all layers share it.
    for name, make in factories.items():
        first = make(layers[0])
        _check_causality(name, first, causal)
        each = [first] * len(layers) if first.shared else [first, *map(make, layers[1:])]
        modules[name] = first if first.shared else nn.ModuleList(each)
        if not first.shared:
            for encoding in each:
                encoding.siblings = tuple(each)
        for encodings, encoding in zip(by_layer, each, strict=True):
            encodings[name] = encoding
    return modules, tuple(map(Chain, layers, by_layer))


def _check_causality(name: str, encoding: Encoding, causal: bool) -> None:
    if encoding.causal_only and not causal:
        problem = f"{name} needs a causal mask, which this model does not have"
        raise OptionError("encoding", f"{problem}; choose model decoder, or another encoding")
    if encoding.needs_full_sequence and causal:
        problem = f"{name} with these options reads the whole sequence, which a causal model cannot"
        raise OptionError("encoding", f"{problem}; choose model encoder, or other options")


def _updates_keys(encoding: Encoding) -> bool:
    return type(encoding).update_cached_keys is not Encoding.update_cached_keys


def _modifies_calls(encoding: Encoding) -> bool:
    return type(encoding).modify is not Encoding.modify


def _transforms_queries(encoding: Encoding) -> bool:
    return type(encoding).transform_query is not Encoding.transform_query


def _localize(encoding: Encoding, tokens: Tokens) -> Tokens:
    """Apply the encoding's coordinate convention, and place special tokens at the origin."""
    tokens = apply_convention(tokens, encoding.coordinates, encoding.dims.length)  # type: ignore[arg-type]
    return place_at_origin(tokens)


def _check_fields(encoding: Encoding, old: AttentionCall, new: AttentionCall) -> None:
    """Raise OptionError for a second transform of scores or weights, or a bias after one."""
    for field in EXCLUSIVE:
        before, after = getattr(old, field), getattr(new, field)
        if before is not None and after is not before:
            problem = f"{encoding.name} and an encoding before it both write {field}"
            raise OptionError("encoding", f"{problem}; list one of them")

    counts = len(old.biases), len(old.low_rank_biases)
    if old.transform_scores is not None and counts != (len(new.biases), len(new.low_rank_biases)):
        problem = f"{encoding.name} adds a bias to scores that an encoding before it transforms"
        raise OptionError("encoding", f"{problem}; list it first")
