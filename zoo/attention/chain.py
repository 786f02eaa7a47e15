"""Make encodings by name, and chain those that a layer applies in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.call import AttentionCall, TransformQuery
from zoo.attention.coordinates import apply_convention
from zoo.attention.encoding import Dims, Encoding, EncodingFactory, check_turned_values
from zoo.attention.special_tokens import (
    place_at_origin,
    restore_heads,
    restore_states,
    restrict_to_positions,
)
from zoo.attention.tokens import Tokens
from zoo.errors import Message, OptionError
from zoo.options import Choice, EncodingSpec
from zoo.options.signature import extras, options
from zoo.options.unknown import OptionOwner, explain_name, explain_nameless
from zoo.options.validation import check_options
from zoo.registry import find, names
from zoo.reporting.panel import Panel
from zoo.suggestions import join_words

# Fields of a call that only one encoding of a chain may set: they cannot be combined.
EXCLUSIVE = ("transform_scores", "normalize", "extra_output", "extra_values")


class Chain(Encoding):
    """Encodings applied in order.

    Each encoding sees coordinates under its own convention. Tokens without a position (CLS,
    registers) are exempt: their queries and keys are not transformed and their pairs get no bias,
    unless the encoding handles such tokens itself.

    Attributes:
        group: Number of the first layer of the model with the same encodings.

    Args:
        dims: The sizes of a layer.
        encodings: The encodings by name.

    Raises:
        OptionError: Two encodings transform queries and keys.
    """

    def __init__(self, dims: Dims, encodings: Mapping[str, Encoding]) -> None:
        nn.Module.__init__(self)
        self.dims = dims
        self.group = dims.layer
        for name, encoding in encodings.items():
            self.add_module(name, encoding)

        self.modifies_calls = any(map(_modifies_calls, encodings.values()))
        self.key_updaters = [n for n, encoding in encodings.items() if _updates_keys(encoding)]
        # Two transforms of queries and keys do not commute, and no paper defines their product.
        transformers = [
            n
            for n, encoding in encodings.items()
            if _updates_keys(encoding) or _transforms_queries(encoding)
        ]
        self.transforms_heads = bool(transformers)
        if len(transformers) > 1:
            message = f"{join_words(transformers)} both transform queries and keys"
            raise OptionError("encoding", f"{message}; list one of them")

        # The declared facts of a chain follow from those of its encodings.
        self.shared = all(encoding.shared for encoding in self)
        self.shift_invariant = all(encoding.shift_invariant for encoding in self)
        self.causal_only = any(encoding.causal_only for encoding in self)
        self.needs_full_sequence = any(encoding.needs_full_sequence for encoding in self)
        self.reads_states = any(encoding.reads_states for encoding in self)
        self.turn_values = any(encoding.turn_values for encoding in self)
        self.lookback = max((encoding.lookback for encoding in self), default=0)
        self.text_length = min(
            (n for encoding in self if (n := encoding.text_length)), default=None
        )
        reasons = (encoding.no_export_reason for encoding in self)
        self.no_export_reason = next(filter(None, reasons), "")
        self.axes = (dims.axes,)
        self.handles_special_tokens = True  # the chain does it for each encoding
        self.zero_gradient = tuple(
            f"{name}.{parameter}"
            for name, encoding in encodings.items()
            for parameter in encoding.zero_gradient
        )

    @property
    def readers_of_earlier_keys(self) -> list[str]:
        """Names of the encodings by which a key depends on the keys of tokens before it."""
        return [encoding.name for encoding in self if encoding.reads_keys and encoding.lookback]

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
            has_all = tokens.has_position is None
            tokens = new if has_all else restore_states(encoding, tokens, new)
        return tokens

    def add_to_input(self, tokens: Tokens) -> Tokens:
        """Call `embed` of the encodings that add to the input."""
        for encoding in self:
            if encoding.adds_to_input:
                tokens = _embed(encoding, tokens)
        return tokens

    def make_tables(self, tokens: Tokens) -> Tokens:
        """Call `embed` of the encodings that leave the input unchanged.

        Raises:
            OptionError: One of them changes it.
        """
        for encoding in self:
            if not encoding.adds_to_input:
                new = _embed(encoding, tokens)
                if new.x is not tokens.x:
                    message = f"{encoding.name} changes the input, which belongs to all layers"
                    hint = "its class must declare adds_to_input, and the model list it"
                    raise OptionError("encoding", f"{message}; {hint}")
                tokens = new
        return tokens

    def count_adders(self) -> int:
        """Count the encodings that add to the input."""
        return sum(encoding.adds_to_input for encoding in self)

    def prepare(self, tokens: Tokens) -> Tokens:
        """Call each encoding's `prepare`; tokens without a position keep their states."""
        for encoding in self:
            new = encoding.prepare(_localize(encoding, tokens))
            has_all = tokens.has_position is None
            tokens = new if has_all else restore_states(encoding, tokens, new)
        return tokens

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Call each encoding's `transform_query` for tokens with a position."""
        for encoding in self:
            q = self._transform(encoding, encoding.transform_query, q, tokens)
        return q

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Call each encoding's `transform_key` for tokens with a position."""
        for encoding in self:
            k = self._transform(encoding, encoding.transform_key, k, tokens)
        return k

    def transform_value(self, v: Tensor, tokens: Tokens, *, back: bool = False) -> Tensor:
        """Call `transform_value` of each encoding that turns values; the last one turns back first.

        Raises:
            OptionError: Values are not as wide as keys.
        """
        for encoding in reversed([*self]) if back else self:
            if not encoding.turn_values:
                continue
            check_turned_values(self, v)
            # Tokens without a position are at the origin, where both directions cancel.
            located, width = _localize(encoding, tokens), encoding.dims.head_dim
            turned = encoding.transform_value(v[..., :width], located, back=back)
            v = turned if width == v.shape[-1] else torch.cat([turned, v[..., width:]], dim=-1)
        return v

    def describe_output(self, tokens: Tokens) -> TransformQuery | None:
        """Return what turns outputs back at the places of queries; None if no value turns."""
        if not self.turn_values:
            return None
        return lambda out: self.transform_value(out, tokens, back=True)

    def _transform(
        self,
        encoding: Encoding,
        transform: Callable[[Tensor, Tokens], Tensor],
        heads: Tensor,
        tokens: Tokens,
    ) -> Tensor:
        """Transform heads [B, H, N, K], or the first channels if the encoding is made for those."""
        width = encoding.dims.head_dim
        if width < self.dims.head_dim and _transforms_queries(encoding):
            turned, unchanged = heads[..., :width], heads[..., width:]
            return torch.cat(
                [self._transform_part(encoding, transform, turned, tokens), unchanged], -1
            )
        return self._transform_part(encoding, transform, heads, tokens)

    def _transform_part(
        self,
        encoding: Encoding,
        transform: Callable[[Tensor, Tokens], Tensor],
        heads: Tensor,
        tokens: Tokens,
    ) -> Tensor:
        new = transform(heads, _localize(encoding, tokens))
        return new if tokens.has_position is None else restore_heads(encoding, heads, new, tokens)

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        """Call each encoding's `update_cached_keys`."""
        for encoding in self:
            k, tokens = encoding.update_cached_keys(k, tokens)
        return k, tokens

    def modify(self, call: AttentionCall) -> AttentionCall:
        """Call each encoding's `modify` for pairs of tokens with a position.

        Raises:
            OptionError: The changes of two encodings contradict each other, or the call's options.
        """
        if call.softcap is not None and self.key_updaters:
            # What later tokens do to keys is added to products, after their cap.
            message = f"{self.key_updaters[0]} changes products of queries and keys after their cap"
            raise OptionError("softcap", f"{message}; leave it out, or choose another encoding")
        for encoding in filter(_modifies_calls, self):
            old = call.replace(
                queries=_localize(encoding, call.queries), keys=_localize(encoding, call.keys)
            )
            new = encoding.modify(old)
            _check_fields(encoding, old, new)
            self._check_keys(encoding, old, new)
            call = new if encoding.handles_special_tokens else restrict_to_positions(old, new)
        if call.transform_output is not None:
            self._check_turned_output(call)
        return call

    def _check_turned_output(self, call: AttentionCall) -> None:
        """Refuse values that do not turn, beside those that turn.

        Raises:
            OptionError: An encoding adds to the output or averages more values.
        """
        names = join_words(encoding.name for encoding in self if encoding.turn_values)
        for field in ("extra_output", "extra_values"):
            if getattr(call, field) is not None:
                message = f"turned outputs of {names} would turn what another encoding adds"
                hint = "leave turn_values out, or the encoding that"
                raise OptionError("turn_values", f"{message}; {hint} writes {field}")

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

    def pair_waves(self, call: AttentionCall) -> Tensor | None:
        """Return the waves of the encoding that turns pairs of channels."""
        for encoding in self:
            queries, keys = _localize(encoding, call.queries), _localize(encoding, call.keys)
            waves = encoding.pair_waves(call.replace(queries=queries, keys=keys))
            if waves is not None:
                return waves
        return None

    def _check_keys(self, encoding: Encoding, old: AttentionCall, new: AttentionCall) -> None:
        """Refuse changes that depend on whether a cached key was updated already.

        An encoding with `update_cached_keys` (PaTH) multiplies keys again with every later token.
        Decoding and a full pass agree only if all others commute with these updates.
        """
        order = list(self)
        for name in self.key_updaters:
            if encoding.consumes_biases or encoding.reads_keys or new.k is not old.k:
                message = f"{encoding.name} reads or changes keys, which {name} updates later"
                raise OptionError("encoding", f"{message}; list one of them")
            is_later = order.index(encoding) > order.index(self._modules[name])  # type: ignore[arg-type]
            if is_later and (new.scale != old.scale or new.q is not old.q):
                message = f"{encoding.name} changes what {name}, before it, has multiplied"
                raise OptionError("encoding", f"{message}; list it first")


def build_chains(
    dims: Dims,
    factories: Mapping[str, EncodingFactory],
    *,
    causal: bool,
    by_layer: Sequence[Mapping[str, EncodingFactory] | None] = (),
    keys: Sequence[str] = (),
    sizes: Sequence[Dims] = (),
) -> tuple[nn.ModuleDict, tuple[Chain, ...]]:
    """Build the encodings of a model and the chain of each layer.

    Layers with the same factory have the same module, if the encoding is shared.

    Args:
        dims: Sizes of a layer; `dims.depth` is the number of layers.
        factories: The encodings by name, each a function of the sizes of its layer.
        causal: Whether the model has a causal mask.
        by_layer: For each layer, the encodings that take the place of `factories`, or None. Empty:
            all layers have `factories`. Encodings that add to the input stay.
        keys: For each layer, the option that its encodings come from, for messages.
        sizes: The sizes of each layer; empty: those of `dims`.

    Returns:
        The encodings by name, and the chains, which hold the same modules. A name stands for a
        module that all its layers share, or for a list with one per layer. If only some layers have
        their own, or several modules have the name, it stands for a mapping with the number of the
        (first) layer of each.

    Raises:
        OptionError: An encoding does not fit the model, or a layer.
    """
    layers = [
        replace(sizes[layer] if sizes else dims, layer=layer) for layer in range(dims.depth or 1)
    ]
    plans, keys = [factories] * len(layers), keys or ["encoding"] * len(layers)
    if any(layer_factories is not None for layer_factories in by_layer):
        plans = _plan_layers(layers, factories, by_layer, keys)

    # Where each encoding is, in the order of the names. Factories are compared by identity.
    places: dict[tuple[str, int, Dims], list[int]] = {}
    for layer, plan in enumerate(plans):
        # Layers of other sizes have modules of their own.
        size = replace(layers[layer], layer=0)
        for name, make in plan.items():
            places.setdefault((name, id(make), size), []).append(layer)

    by_name: dict[str, dict[int, Encoding]] = {}
    built: list[dict[str, Encoding]] = [{} for _ in layers]
    for (name, _, _), numbers in places.items():
        make = plans[numbers[0]][name]
        # The first instance declares whether all its layers share it.
        first_member = make(layers[numbers[0]])
        _check_causality(name, first_member, causal, keys[numbers[0]])
        members = {numbers[0]: first_member}
        if not first_member.shared:
            members |= {number: make(layers[number]) for number in numbers[1:]}
            for encoding in members.values():
                encoding.siblings = tuple(members.values())
        by_name.setdefault(name, {}).update(members)
        for number in numbers:
            built[number][name] = members.get(number, first_member)

    modules = nn.ModuleDict()
    for name, members in by_name.items():
        modules[name] = _collect_modules(members, len(layers))
    chains = tuple(
        _build_chain(layer_dims, {name: encodings[name] for name in plan}, key)
        for layer_dims, plan, encodings, key in zip(layers, plans, built, keys, strict=True)
    )
    # Layers with the same encodings form a group, whose tables are made once.
    groups: dict[tuple[Dims, *tuple[tuple[str, int], ...]], int] = {}
    for layer, (chain, plan) in enumerate(zip(chains, plans, strict=True)):
        encodings = tuple((name, id(plan[name])) for name in plan)
        chain.group = groups.setdefault((replace(layers[layer], layer=0), *encodings), layer)
    return modules, chains


def _build_chain(dims: Dims, encodings: Mapping[str, Encoding], key: str) -> Chain:
    try:
        return Chain(dims, encodings)
    except OptionError as error:
        raise OptionError(key, error.message) from None


def _plan_layers(
    layers: Sequence[Dims],
    factories: Mapping[str, EncodingFactory],
    by_layer: Sequence[Mapping[str, EncodingFactory] | None],
    keys: Sequence[str],
) -> list[Mapping[str, EncodingFactory]]:
    """Return the encodings of each layer: its own, and those of the model that belong to all.

    Raises:
        OptionError: An encoding that some layers have belongs to all of them.
    """
    common: dict[str, EncodingFactory] = {}
    # What an encoding does is known once it is built, here without memory.
    with torch.device("meta"):
        for name, make in factories.items():
            encoding = make(layers[0])
            if carries_data(encoding):
                message = f"{name} carries data from layer to layer, so that all layers need it"
                hint = "leave encoding out of layer_types, or choose another one"
                raise OptionError("encoding", f"{message}; {hint}")
            if encoding.adds_to_input:
                common[name] = make
        for dims, layer_factories, key in zip(layers, by_layer, keys, strict=True):
            for name, make in (layer_factories or {}).items():
                if reason := explain_belonging(name, make(dims)):
                    raise OptionError(key, f"{reason}; list it in model.encoding")
    return [
        factories if layer_factories is None else {**common, **layer_factories}
        for layer_factories in by_layer
    ]


def explain_belonging(name: str, encoding: Encoding) -> str:
    """Return why an encoding belongs to all layers of a model; empty if single ones may have it."""
    if encoding.adds_to_input:
        return f"{name} adds to the input, so that it belongs to the model and not to a layer"
    if carries_data(encoding):
        return f"{name} carries data from layer to layer, so that all layers need it"
    return ""


def carries_data(encoding: Encoding) -> bool:
    """Return whether an encoding changes tokens after attention, for the next layer."""
    return type(encoding).after_attention is not Encoding.after_attention


def _collect_modules(members: Mapping[int, Encoding], depth: int) -> nn.Module:
    """Return the module that a name of an encoding stands for; see `build_chains`."""
    first_member = next(iter(members.values()))
    if len(members) == 1 and first_member.shared:
        return first_member
    if len(members) == depth and not any(member.shared for member in members.values()):
        return nn.ModuleList(members[layer] for layer in range(depth))
    return nn.ModuleDict({str(layer): members[layer] for layer in sorted(members)})


def embed_groups(chains: Sequence[Chain], tokens: Tokens) -> dict[int, Tokens]:
    """Apply the encodings that change tokens before the first layer, where layers differ.

    Args:
        chains: The chain of each layer.
        tokens: Tokens with states [B, N, D].

    Returns:
        The tokens of each group of layers with the same encodings, by `Chain.group`. All have the
        same states.

    Raises:
        OptionError: An encoding of some layers changes the states of all.
    """
    groups = {chain.group: chain for chain in reversed(chains)}
    # Every chain of a model has the encodings that add to the input, except empty ones.
    fullest = max(groups.values(), key=lambda chain: chain.count_adders())
    tokens = fullest.add_to_input(tokens)
    return {group: chain.make_tables(tokens) for group, chain in groups.items()}


def list_links(chains: Iterable[Chain]) -> list[Encoding]:
    """List the encodings of several layers: one of those that layers share or have each."""
    links: dict[int, Encoding] = {}
    for chain in chains:
        for encoding in chain:
            links.setdefault(id(encoding.siblings[0] if encoding.siblings else encoding), encoding)
    return [*links.values()]


def _check_causality(name: str, encoding: Encoding, causal: bool, key: str) -> None:
    if refusal := encoding.explain_misfit(encoding.dims, causal=causal):
        raise OptionError(key, f"{refusal}; choose model decoder, or another encoding")
    if encoding.needs_full_sequence and causal:
        message = f"{name} with these options reads the whole sequence, which a causal model cannot"
        raise OptionError(key, f"{message}; choose model encoder, or other options")
    if causal:
        check_coordinates_known([encoding], key)


def depends_on_length(encoding: Encoding) -> bool:
    """Return whether coordinates of texts depend on its length; the size of a grid is fixed."""
    return encoding.dims.axes == 1 and encoding.coordinates != "index"


def check_coordinates_known(encodings: Iterable[Encoding], key: str = "encoding") -> None:
    """Check that a causal model can know the coordinates of tokens, though it sees the past only.

    Raises:
        OptionError: The coordinates of an encoding depend on the length of the full text.
    """
    for encoding in encodings:
        if depends_on_length(encoding):
            message = f"{encoding.name} has {encoding.coordinates} coordinates, which depend on "
            message += "the length of the text; a causal model does not know it"
            raise OptionError(key, f"{message}; add coordinates: index to its entry")


def _updates_keys(encoding: Encoding) -> bool:
    return type(encoding).update_cached_keys is not Encoding.update_cached_keys


def _modifies_calls(encoding: Encoding) -> bool:
    return type(encoding).modify is not Encoding.modify


def _transforms_queries(encoding: Encoding) -> bool:
    return type(encoding).transform_query is not Encoding.transform_query


def only_transforms_heads(encoding: Encoding) -> bool:
    """Return whether an encoding transforms queries and keys, and changes nothing else."""
    changes_more = _modifies_calls(encoding) or _updates_keys(encoding)
    return _transforms_queries(encoding) and not changes_more


def _embed(encoding: Encoding, tokens: Tokens) -> Tokens:
    new = encoding.embed(_localize(encoding, tokens))
    return new if tokens.has_position is None else restore_states(encoding, tokens, new)


def _localize(encoding: Encoding, tokens: Tokens) -> Tokens:
    """Apply the encoding's coordinate convention, and place special tokens at the origin."""
    tokens = apply_convention(tokens, encoding.coordinates, encoding.dims.length)  # type: ignore[arg-type]
    return tokens if tokens.has_position is None else place_at_origin(tokens)


def _check_fields(encoding: Encoding, old: AttentionCall, new: AttentionCall) -> None:
    """Raise OptionError for changes that contradict each other.

    They are a second transform of scores or weights, a bias after one, and sinks of no softmax.
    """
    for field in EXCLUSIVE:
        before, after = getattr(old, field), getattr(new, field)
        if before is not None and after is not before:
            message = f"{encoding.name} and an encoding before it both write {field}"
            raise OptionError("encoding", f"{message}; list one of them")

    if new.normalize is not None and new.sinks is not None:
        message = f"{encoding.name} has no softmax whose denominator sinks could join"
        raise OptionError("sinks", f"{message}; leave them out, or choose another encoding")

    counts = len(old.biases), len(old.low_rank_biases)
    if old.transform_scores is not None and counts != (len(new.biases), len(new.low_rank_biases)):
        message = f"{encoding.name} adds a bias to scores that an encoding before it transforms"
        raise OptionError("encoding", f"{message}; list it first")


def encoding_names() -> tuple[str, ...]:
    """Return the registered names of all encodings.

    Returns:
        The names in alphabetical order, including those of plug-ins.
    """
    return names("encodings")


def encoding_class(name: str) -> type[Encoding]:
    """Return the class of an encoding, whose attributes are its declared facts.

    Args:
        name: A registered name, such as "rope".

    Returns:
        The class. Its arguments are `dims` and the encoding's options.

    Raises:
        OptionError: No encoding has this name.
    """
    try:
        return find("encodings", name)
    except KeyError:
        message = f"no encodings named {name!r}"
        raise OptionError("name", f"{message}; {explain_name('encodings', name)}") from None
    except TypeError:
        raise OptionError("name", f"the name of an encoding is a string, not {name!r}") from None


def encoding(name: EncodingSpec | Sequence[EncodingSpec], dims: Dims, **options: Any) -> Encoding:
    """Make an encoding for a model of given sizes.

    Args:
        name: A name, a mapping `{"name": "liere", "block": 4}`, or a list of these, which are
            applied in order.
        dims: The sizes of the model.
        **options: Options of a single encoding. Every encoding also takes `shared` (one module for
            all layers) and `coordinates` (a convention), which replace the values it declares.

    Returns:
        The encoding; a `Chain` if `name` is a list.

    Raises:
        OptionError: A name or option is unknown, or a value does not fit `dims`. It is a
            ValueError.
    """
    if not isinstance(dims, Dims):
        raise OptionError("dims", f"dims is {type(dims).__name__}, not zoo.Dims")
    if not isinstance(name, Sequence) or isinstance(name, str):
        choice = parse_entry(name)
        return make_factory(Choice(choice.name, {**choice.options, **options}))(dims)
    if options:
        message = "a list of encodings takes options in its entries: [{name: liere, block: 4}]"
        raise OptionError("name", message)

    # A chain registers its encodings as modules by name, so a name can occur only once.
    choices = [parse_entry(entry) for entry in name]
    counts = Counter(choice.name for choice in choices)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        message = f"{', '.join(repeated)} is in the list twice; list it once"
        raise OptionError("name", message)
    return Chain(dims, {choice.name: make_factory(choice)(dims) for choice in choices})


def parse_entry(entry: EncodingSpec) -> Choice:
    """Return the name and the options of one encoding, given in any accepted form.

    Raises:
        OptionError: The entry has no name, or its options are not a mapping.
    """
    if isinstance(entry, Choice):
        return entry
    if isinstance(entry, str):
        return Choice(entry)
    if not isinstance(entry, Mapping):
        message = f"an encoding is a name, a mapping or a list of these, not {entry!r}"
        raise OptionError("name", message)
    # Options are next to the name, or in a separate mapping, as in a resolved recipe.
    options = dict(entry)
    name, more = options.pop("name", None), options.pop("options", {})
    if not isinstance(name, str):
        hint = explain_nameless("encodings", entry) or "write {name: rope, ...}"
        raise OptionError("name", f"no name in {dict(entry)!r}; {hint}")
    if not isinstance(more, Mapping):
        raise OptionError("options", f"options are a mapping, not {more!r}")
    return Choice(name, {**more, **options})


def make_factory(entry: EncodingSpec) -> EncodingFactory:
    """Validate an encoding's name and options, and return a factory that takes the sizes.

    Raises:
        OptionError: The name or an option is unknown, or a value is out of bounds.
    """
    choice = parse_entry(entry)
    cls = encoding_class(choice.name)
    # every encoding takes these, which replace facts that its class declares
    common = extras("encodings")
    try:
        member = OptionOwner("encodings", choice.name)
        checked = check_options({**options(cls), **common}, choice.options, member)
    except OptionError as error:
        raise OptionError(error.key, f"{choice.name}: ", error.message) from None
    facts = {key: checked.pop(key) for key in common if key in checked}

    def make(dims: Dims) -> Encoding:
        try:
            encoding = cls(dims, **checked)
            if dims.points:
                if facts.get("coordinates") is not None:
                    reason = "points have coordinates of their own, to which no convention applies"
                    raise OptionError("coordinates", f"{reason}; leave it out")
                encoding.coordinates = "index"
            for fact, value in facts.items():
                if value is not None:
                    setattr(encoding, fact, value)
            encoding.check_options()
        except OptionError as error:
            # A recipe may list several encodings: the message names the one at fault.
            if error.subject:
                raise
            message = Message(f"{choice.name}: ", error.message)
            raise OptionError(error.key, message, subject=choice.name) from None
        encoding.entry = choice
        return encoding

    return make
