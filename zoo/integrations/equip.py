"""`zoo.equip`: put encodings into models of other libraries, remove them, save and load."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, Protocol

import torch
from torch import nn

from zoo.attention.backends.dispatch import BACKENDS
from zoo.attention.chain import explain_belonging, make_factory, only_transforms_heads, parse_entry
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims, Encoding, EncodingFactory
from zoo.errors import CheckpointError, OptionError, refuse_type
from zoo.integrations.equipment import (
    NAME,
    Equipment,
    Surgery,
    TurnedChannels,
    find_changed,
    is_equipped,
    spread_axes,
)
from zoo.integrations.own_rotation import OwnPositions, describe_choice
from zoo.integrations.saved_equipment import WEIGHTS, find_model_class, load_weights, read_saved
from zoo.integrations.torch_modules import MODULES, TorchAdapter
from zoo.options import Choice, EncodingSpec
from zoo.options.signature import fields
from zoo.options.validation import check_options
from zoo.packages import explain_imports
from zoo.suggestions import join_words, nearest
from zoo.utils import escape_text, raise_if_out_of_memory
from zoo.weights import check_sizes, describe_fault, limit_model

OWN = "own"  # stands for the positions of the model itself
SURGERY = "zoo_surgery"  # the attribute of an equipped model that has what was changed


class Adapter(Protocol):
    """The facts of a model, and the way to change it. Each library has an adapter."""

    @property
    def causal(self) -> bool:
        """True if the model has a causal mask."""
        ...

    @property
    def turned(self) -> Sequence[TurnedChannels | None]:
        """For each layer, the channels that the model rotates; empty if it rotates none."""
        ...

    @property
    def without_position(self) -> tuple[int, ...]:
        """Indices of the layers that have no positions in the original model."""
        ...

    @property
    def windowed(self) -> tuple[bool, ...]:
        """For each layer, whether it has a window; empty if no layer has one."""
        ...

    @property
    def adds_positions(self) -> bool:
        """True if the model has positions that single layers cannot keep."""
        ...

    @property
    def keeps_rotation(self) -> bool:
        """True if the model has a rotation that no encoding equals, and that may stay in it."""
        ...

    @property
    def position_axes(self) -> int:
        """Number of axes of the positions that the model takes."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of the equipment in this model, for a report."""
        ...

    def find_sizes(self, length: int | tuple[int, ...] | None) -> Sequence[Dims]:
        """Return the sizes of each layer."""
        ...

    def find_own(self, length: int | tuple[int, ...] | None) -> OwnPositions | None:
        """Return the model's own rotations as an encoding; None if it has none."""
        ...

    def install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Put the encodings into the model, and describe what was removed from it."""
        ...


@dataclass(frozen=True)
class EquipReport:
    """A report of the changes that `zoo.equip` made to a model."""

    encoding: str
    """The encodings, with the options that come from the model."""
    layers: int
    """Number of attention layers with encodings."""
    parameters: int
    """Number of new parameters, which are named `zoo_encoding.*`."""
    removed: tuple[str, ...]
    """The model's original positions, and how each was disabled."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.encoding} in {self.layers} layers, {self.parameters:,} new parameters"]
        lines += [f"removed: {one}" for one in self.removed]
        return "\n".join([*lines, *self.notes])


def equip(
    model: nn.Module,
    encoding: EncodingSpec | Sequence[EncodingSpec],
    *,
    length: int | tuple[int, ...] | None = None,
    causal: bool | None = None,
    backend: str = "auto",
    layers: Literal["all", "full", "windowed"] | Sequence[int] = "all",
    position_augmentation: Mapping[str, Any] | PositionAugmentation | None = None,
) -> EquipReport:
    """Replace the positions of a model by encodings. The model is changed in place.

    The weights keep their values and names; the encodings are a new submodule, `zoo_encoding`.
    Plain "rope" takes base, rotary fraction and scaling from the model's rotary embedding, if it
    has one, so that the outputs of the model do not change.

    Args:
        model: A model of transformers or timm, or an `nn.TransformerEncoder`,
            `nn.TransformerEncoderLayer` or `nn.MultiheadAttention` of torch.
        encoding: A name, a mapping with options, or a list of these. "own": the model's own
            positions, computed by zoo where they are a rotation; the outputs stay the same.
        length: Training length in tokens, or in patches along each axis; that of the model's
            configuration by default. Some encodings need it. A rotation that follows the length of
            the sequence (dynamic, longrope) is fixed for this length; without it, for the model's
            original length.
        causal: Whether a module of torch has a causal mask; False by default. Models of
            transformers and timm determine it themselves.
        backend: "auto", "reference", "chunked", "sdpa" or "flex".
        layers: The layers that get the encoding: "full" are those without a window, "windowed"
            those with one, and numbers count from 0. The others keep their own rotation. "all":
            every layer that has positions.
        position_augmentation: Random changes of the positions of patches while a model of images is
            in training mode, as the models of zoo have them: a mapping with `jitter`, `stretch`,
            `aspect`, `shift` and `per_sample`. None: there are none.

    Returns:
        A report of the changes.

    Raises:
        OptionError: zoo would not compute what the model does with its own positions, with the law
            and the layer; or the encoding does not fit the model. The model is then unchanged.
    """
    if not isinstance(model, nn.Module):
        problem = f"model: expected a model, got {reprlib.repr(model)}"
        raise OptionError("model", f"{problem}; load it first, as AutoModel.from_pretrained does")
    if not isinstance(causal, bool | NoneType):
        raise refuse_type("causal", causal, "True or False")
    for size in length if isinstance(length, tuple | list) else [length]:
        if not isinstance(size, Integral | NoneType):
            raise refuse_type("length", size, "an integer, or one for each axis")
    if is_equipped(model):
        raise OptionError("model", "the model is equipped already; call zoo.unequip(model) first")
    if find_changed(model) is not None:
        parts = [path for path, module in model.named_modules() if path and is_equipped(module)]
        problem = "the model is a part of an equipped one"
        if parts:
            problem = f"its part {parts[0]} is equipped already"
        raise OptionError("model", f"{problem}; call zoo.unequip of that one first")
    if backend not in BACKENDS:
        raise OptionError("backend", f"no backend {backend!r}; {nearest(str(backend), BACKENDS)}")
    adapter = find_adapter(model, causal)
    names, factories, equals_own = _make_factories(encoding, adapter, length)
    keeps_positions = not factories and equals_own
    chosen = _choose_layers(adapter, layers)
    augmentation = _read_augmentation(position_augmentation, adapter, factories, length)
    equipment, removed = install(
        model,
        adapter,
        factories,
        length,
        backend,
        equals_own=equals_own,
        keeps_positions=keeps_positions,
        chosen=chosen,
        others={} if chosen is None else _make_others(adapter, factories, length),
        augmentation=augmentation,
    )
    # Saved with the model, to equip it again in the same way.
    entries = [{"name": choice.name, **choice.options} for choice in _list_choices(encoding)]
    equipment.arguments = {"encoding": entries, "length": length, "backend": backend}
    if chosen is not None:
        equipment.arguments["layers"] = list(chosen)
    if not augmentation.is_identity:
        equipment.arguments["position_augmentation"] = asdict(augmentation)
    return _report(names, equipment, removed, _list_bare(adapter, chosen), chosen, adapter.notes)


def install(
    model: nn.Module,
    adapter: Adapter,
    factories: Mapping[str, EncodingFactory],
    length: int | tuple[int, ...] | None,
    backend: str,
    *,
    equals_own: bool = False,
    keeps_positions: bool = False,
    chosen: Sequence[int] | None = None,
    others: Mapping[str, EncodingFactory] = MappingProxyType({}),
    augmentation: PositionAugmentation = PositionAugmentation(),
) -> tuple[Equipment, list[str]]:
    """Install encodings in a model.

    Args:
        model: The model.
        adapter: Its adapter.
        factories: The encodings by name.
        length: Training length, as in `equip`.
        backend: The attention backend.
        equals_own: Whether the encodings are the model's own, so that nothing may change.
        keeps_positions: Whether the model keeps its own positions, and is only observed.
        chosen: Indices of the layers that get the encodings; None: all that have positions.
        others: The encodings of the other layers.
        augmentation: Changes of the positions of patches in training.

    Returns:
        The installed encodings, and a list that describes what was removed from the model.

    Raises:
        OptionError: The encodings do not fit the model, or its attention computes something that
            zoo does not know. The model is then unchanged.
    """
    sizes = adapter.find_sizes(length)
    if _need_axes({**others, **factories}, sizes[0], adapter.position_axes):
        sizes = spread_axes(sizes, adapter.position_axes)
    dims = sizes[0]
    by_layer: list[Mapping[str, EncodingFactory] | None] = []
    if chosen is not None:
        # A layer without positions of its own that gets some is no longer what it was.
        equals_own = equals_own and not {*chosen} & {*adapter.without_position}
        by_layer = [None if layer in chosen else others for layer in range(dims.depth or 1)]
    equipment = Equipment(
        dims,
        factories,
        by_layer=by_layer,
        causal=adapter.causal,
        turned=adapter.turned,
        sizes=sizes,
        without_position=_list_bare(adapter, chosen),
        backend=backend,
        equals_own=equals_own,
        keeps_positions=keeps_positions,
    )
    equipment.windowed, equipment.position_augmentation = adapter.windowed, augmentation
    example = next(model.parameters())
    equipment.to(device=example.device, dtype=example.dtype).train(model.training)

    # Any failure undoes the changes that were made so far.
    surgery = Surgery()
    try:
        surgery.add_module(model, NAME, equipment)
        removed = adapter.install(equipment, surgery)
    except BaseException:
        surgery.undo()
        raise
    vars(model)[SURGERY] = surgery
    return equipment, removed


def _need_axes(factories: Mapping[str, EncodingFactory], dims: Dims, axes: int) -> bool:
    """Return whether an encoding reads all axes of a model's positions, and not one of them."""
    if axes <= dims.axes:
        return False
    with torch.device("meta"):
        return any(
            not _accepts(make, dims) and _accepts(make, *spread_axes([dims], axes))
            for make in factories.values()
        )


def _accepts(make: EncodingFactory, dims: Dims) -> bool:
    """Return whether an encoding can be made for these sizes."""
    try:
        make(dims)
    except OptionError:
        return False
    return True


def _list_bare(adapter: Adapter, chosen: Sequence[int] | None) -> tuple[int, ...]:
    """List the layers that stay without positions, as they were, unless they were chosen."""
    return tuple(layer for layer in adapter.without_position if layer not in (chosen or ()))


def _choose_layers(adapter: Adapter, layers: str | Sequence[int]) -> tuple[int, ...] | None:
    """Return the indices of the chosen layers; None: all that have positions.

    Raises:
        OptionError: There is no such layer.
    """
    depth = len(adapter.find_sizes(None))
    if isinstance(layers, str):
        if layers == "all":
            return None
        if layers not in ("full", "windowed"):
            problem = f"no layers {layers!r}"
            raise OptionError(
                "layers", f"{problem}; write all, full, windowed or a list of numbers"
            )
        # a model that declares no windows has full attention in all layers
        each = enumerate(adapter.windowed or (False,) * depth)
        found = tuple(layer for layer, one in each if one == (layers == "windowed"))
        if not found:
            problem = f"the model has no {layers} layers"
            raise OptionError("layers", f"{problem}; leave it out, or list numbers of layers")
        return found
    if not isinstance(layers, Sequence):
        raise refuse_type("layers", layers, "all, full, windowed or a list of numbers")
    for one in layers:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < depth:
            problem = f"there is no layer {one!r}"
            raise OptionError("layers", f"{problem}; the model has layers 0 to {depth - 1}")
    if not layers:
        raise OptionError("layers", "the list is empty; name a layer, or leave it out for all")
    return tuple(sorted({*layers}))


def _read_augmentation(
    given: Mapping[str, Any] | PositionAugmentation | None,
    adapter: Adapter,
    factories: Mapping[str, EncodingFactory],
    length: int | tuple[int, ...] | None,
) -> PositionAugmentation:
    """Return the changes of positions in training.

    Raises:
        OptionError: A change is unknown or has a wrong value, or nothing reads the positions.
    """
    key = "position_augmentation"
    if given is None:
        return PositionAugmentation()
    try:
        if isinstance(given, PositionAugmentation):
            augmentation = given
        elif isinstance(given, Mapping):
            augmentation = PositionAugmentation(
                **check_options(fields(PositionAugmentation), dict(given))
            )
        else:
            raise refuse_type(key, given, "a mapping such as {'jitter': 0.5}")
    except OptionError as error:
        if error.key == key:
            raise
        raise OptionError(f"{key}.{error.key}", f"{key}.", error.message) from None
    if augmentation.is_identity:
        problem = "no change is enabled; set jitter, stretch, aspect or shift"
        raise OptionError(key, f"{key}: {problem}, or leave it out")
    dims = adapter.find_sizes(length)[0]
    if dims.axes == 1:
        problem = "it moves patches of images, and the model reads text; leave it out"
        raise OptionError(key, f"{key}: {problem}")
    # What an encoding reads is known once it is built, here without memory.
    with torch.device("meta"):
        links = [make(dims) for make in factories.values()]
    if not any(one.reads_positions for one in links):
        names = join_words(link.name for link in links)
        verb = "takes" if len(links) == 1 else "take"
        problem = f"{names} {verb} no coordinates that could move; leave it out"
        raise OptionError(key, f"{key}: {problem}, or choose another encoding")
    return augmentation


def _make_others(
    adapter: Adapter, factories: Mapping[str, EncodingFactory], length: int | tuple[int, ...] | None
) -> dict[str, EncodingFactory]:
    """Make the factories of the layers that keep their own rotation.

    Raises:
        OptionError: The model has positions that single layers cannot keep, or an encoding belongs
            to all layers.
    """
    dims = adapter.find_sizes(length)[0]
    with torch.device("meta"):
        for name, make in factories.items():
            if reason := explain_belonging(name, make(dims)):
                raise OptionError("encoding", f"{reason}; leave layers out")
    if adapter.adds_positions:
        problem = "the model has positions that single layers cannot keep, such as a table that is "
        raise OptionError("layers", f"{problem}added to the input; leave layers out")
    own = adapter.find_own(length)
    return {"rope": own.make} if own else {}


@contextmanager
def observe_attention(model: nn.Module) -> Iterator[None]:
    """Compute the attention of a plain model by zoo for a while, with the model's own positions.

    A rope that zoo has becomes the encoding `rope`, so that its positions can be changed too. Other
    positions stay in the model.

    Args:
        model: The model; afterwards it is as it was.

    Raises:
        OptionError: The model cannot be equipped.
    """
    adapter = find_adapter(model, None, observes=True)
    try:
        _, factories, _ = _make_factories(OWN, adapter, None)
        install(
            model, adapter, factories, None, "auto", equals_own=True, keeps_positions=not factories
        )
    except OptionError:
        # Positions that zoo does not compute as the model does stay in the model.
        install(model, adapter, {}, None, "auto", equals_own=True, keeps_positions=True)
    try:
        yield
    finally:
        vars(model).pop(SURGERY).undo()


def unequip(model: nn.Module) -> nn.Module:
    """Remove the encodings from a model, and restore its original positions.

    Args:
        model: A model that `zoo.equip` changed.

    Returns:
        The same model.

    Raises:
        OptionError: The model is not equipped.
    """
    if not isinstance(model, nn.Module):
        raise refuse_type("model", model, "a model")
    if not is_equipped(model):
        raise OptionError("model", "the model is not equipped")
    if not isinstance(model.get_submodule(NAME), Equipment):
        problem = "an adapter of peft has a copy of the encodings"
        raise OptionError("model", f"{problem}; call merge_and_unload or unload of it first")
    vars(model)[SURGERY].undo()
    del vars(model)[SURGERY]
    return model


def find_adapter(model: nn.Module, causal: bool | None, *, observes: bool = False) -> Adapter:
    """Return the adapter of a model for the library of its class.

    Args:
        model: The model.
        causal: Whether a module of torch has a causal mask.
        observes: Whether the model keeps its positions.

    Raises:
        OptionError: There is none, or the model cannot be equipped.
    """
    if type(model) in MODULES:
        return TorchAdapter(model, bool(causal))
    if causal is not None:
        problem = "models of transformers and timm determine it themselves; leave it out"
        raise OptionError("causal", problem)
    # A class may be derived from one of a library. Adapters import their library only here.
    libraries = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    if "peft" in libraries:  # before transformers, of which it has a base class
        problem = f"{type(model).__name__} of peft wraps the model in adapters"
        remedy = (
            "equip the model first, then call get_peft_model with "
            'modules_to_save=["zoo_encoding"] in its configuration'
        )
        raise OptionError("model", f"{problem}; {remedy}")
    if "transformers" in libraries:
        from zoo.integrations.transformers_models import TransformersAdapter

        return TransformersAdapter(model, observes=observes)
    if "timm" in libraries:
        from zoo.integrations.timm_models import TimmAdapter

        return TimmAdapter(model)
    # torch.compile and data parallelism keep the model in these attributes
    if any(isinstance(getattr(model, name, None), nn.Module) for name in ("_orig_mod", "module")):
        problem = f"{type(model).__name__} wraps a model; equip the model before it is wrapped"
        raise OptionError("model", problem)
    known = ", ".join(f"nn.{cls.__name__}" for cls in MODULES)
    problem = f"{type(model).__name__} is no model of transformers or timm, and none of {known}"
    raise OptionError("model", f"{problem}; see zoo.Attention for a layer in your own model")


def _make_factories(
    encoding: EncodingSpec | Sequence[EncodingSpec],
    adapter: Adapter,
    length: int | tuple[int, ...] | None,
) -> tuple[list[str], dict[str, EncodingFactory], bool]:
    """Make the factories of encodings. Plain rope gets the model's own options.

    Frequencies that follow the length of texts are fixed for `length`.

    Returns:
        Descriptions of the encodings, their factories by name, and whether they are the model's
        own positions and nothing else.
    """
    choices = _list_choices(encoding)
    is_plain = [(choice.name, bool(choice.options)) for choice in choices] == [("rope", False)]
    if [choice.name for choice in choices] == [OWN] or (is_plain and adapter.keeps_rotation):
        if choices[0].options:
            raise OptionError("encoding", f"{OWN} has no options; leave them out")
        own = adapter.find_own(length)
        # Positions other than rotations stay in the model.
        return ([own.description], {"rope": own.make}, True) if own else ([OWN], {}, True)

    descriptions: list[str] = []
    factories: dict[str, EncodingFactory] = {}
    has_own = False
    for choice in choices:
        if choice.name in factories:
            raise OptionError("encoding", f"{choice.name} is in the list twice; list it once")
        if choice.name == OWN:
            raise OptionError("encoding", f"{OWN} cannot be combined; list it alone")
        is_plain = choice.name == "rope" and not choice.options
        if is_plain and (own := adapter.find_own(length)):
            factories["rope"], has_own = own.make, True
            descriptions.append(own.description)
            continue
        make = make_factory(choice)
        # A fraction of the channels of a head is one of all of them.
        if "rotary_fraction" not in choice.options:
            make = _turn_part(make, adapter.turned)
        factories[choice.name] = make
        descriptions.append(describe_choice(choice))
    return descriptions, factories, has_own and len(choices) == 1


def _turn_part(make: EncodingFactory, turned: Sequence[TurnedChannels | None]) -> EncodingFactory:
    """Make rotations turn the channels of a head that the model turns, where these are a part."""

    def make_part(dims: Dims) -> Encoding:
        channels = turned[dims.layer] if turned else None
        if channels is None or channels.width == dims.head_dim:
            return make(dims)
        with torch.device("meta"):
            is_rotation = only_transforms_heads(make(dims))
        return make(replace(dims, head_dim=channels.width) if is_rotation else dims)

    return make_part


def _list_choices(encoding: EncodingSpec | Sequence[EncodingSpec]) -> list[Choice]:
    # anything else is refused as an entry
    is_list = isinstance(encoding, Sequence) and not isinstance(encoding, str)
    entries: list[Any] = [*encoding] if is_list else [encoding]  # type: ignore[misc]
    return [parse_entry(entry) for entry in entries]


def _report(
    names: Sequence[str],
    equipment: Equipment,
    removed: Sequence[str],
    bare: Sequence[int],
    chosen: Sequence[int] | None,
    notes_of_model: Sequence[str],
) -> EquipReport:
    count = sum(parameter.numel() for parameter in equipment.parameters())
    depth = len(equipment.chains)
    notes = (f"layers without positions, as before: {', '.join(map(str, bare))}",) if bare else ()
    layers = depth - len(bare) if chosen is None else len(chosen)
    if layers + len(bare) < depth:
        kept = [str(one) for one in range(depth) if one not in (*(chosen or ()), *bare)]
        notes = (*notes, f"layers with their own rotation: {', '.join(kept)}")
    if not equipment.position_augmentation.is_identity:
        notes = (*notes, "patches move in training mode")
    notes = (*notes, *notes_of_model)
    return EquipReport(" + ".join(names), layers, count, tuple(removed), notes)


def load(folder: str | Path) -> nn.Module:
    """Load a model that `save` saved, in evaluation mode, with its encodings.

    Args:
        folder: The folder.

    Returns:
        The model of transformers. It cannot be unequipped, because the folder does not contain what
        was removed.

    Raises:
        CheckpointError: A file of the folder is missing, damaged or of another model, or names
            something that is no model of transformers.
        PackageError: transformers or safetensors is missing.
    """
    with explain_imports():
        import transformers

    folder = Path(folder)
    saved = read_saved(folder)
    path = folder / "config.json"
    check_sizes(saved.config, saved.weights, path)
    config = {**saved.config, "model_type": saved.kind, "architectures": [saved.name]}

    def build() -> Any:
        # Build the original model, and equip it as before.
        made = find_model_class(saved, path)(
            transformers.CONFIG_MAPPING[saved.kind].from_dict(deepcopy(config))
        )
        made = made.to(saved.dtype).eval()
        equip(
            made,
            saved.encoding,
            length=saved.length,
            backend=saved.backend,
            layers=saved.layers,
            position_augmentation=saved.position_augmentation,
        )
        return made

    try:
        with limit_model(saved.weights, path), torch.device("meta"):
            names = dict(build().named_parameters(remove_duplicate=False))
        for name in names.keys() & saved.weights.keys():
            if fault := describe_fault(saved.weights[name]):
                raise CheckpointError(escape_text(f"{folder / WEIGHTS}: {name} {fault}"))
        model = build()
        load_weights(model, folder)
        if model.can_generate():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    except CheckpointError:
        raise
    except Exception as error:
        raise_if_out_of_memory(error)
        # Configurations and weights of transformers fail in many ways.
        cause = " ".join(str(error).split())[:300] or type(error).__name__
        problem = "its configuration and its weights make no model"
        raise CheckpointError(escape_text(f"{folder}: {problem}: {cause}")) from None
    vars(model)[SURGERY] = Surgery(is_copy=True)
    return model
