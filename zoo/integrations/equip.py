"""`zoo.equip`: put any encoding into a model that zoo did not build; take it out, save and load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from zoo.attention.backends.dispatch import BACKENDS
from zoo.attention.encoding import Dims, Encoding, EncodingFactory
from zoo.attention.functional import EncodingSpec, make_factory, parse_entry
from zoo.errors import OptionError
from zoo.integrations.equipment import Equipment, Surgery
from zoo.integrations.torch_modules import MODULES, TorchAdapter
from zoo.options import Choice
from zoo.packages import explain_imports

NAME = "zoo_encoding"  # the submodule of an equipped model that holds its encodings
WEIGHTS = "equipped.safetensors"  # under another name than transformers looks for
MODEL_TYPE = "zoo_equipped, which zoo.load_equipped reads"  # transformers prints it
ENTRY = "zoo"  # the key of the configuration that holds the encodings


class Adapter(Protocol):
    """What is known of a model: an adapter for each library."""

    @property
    def causal(self) -> bool:
        """Whether the model has a causal mask."""
        ...

    @property
    def interleave(self) -> int:
        """How many channels of a head the model rotates as halves."""
        ...

    @property
    def without_position(self) -> tuple[int, ...]:
        """Numbers of layers that have no positions in the model itself."""
        ...

    @property
    def own_ropes(self) -> tuple[Mapping[str, Any], ...]:
        """The options of `rope`, for each layer, that make it the model's own; or empty."""
        ...

    def find_dims(self, length: int | tuple[int, ...] | None) -> Dims:
        """Return the sizes of the model."""
        ...

    def install(self, equipment: Equipment, surgery: Surgery) -> list[str]:
        """Put the encodings into the model; return what was removed from it."""
        ...


@dataclass(frozen=True)
class EquipReport:
    """What `zoo.equip` did to a model."""

    encoding: str
    """The encodings, with the options that were taken from the model."""
    layers: int
    """Attention layers that have them."""
    parameters: int
    """New parameters, all named `zoo_encoding.*`."""
    removed: tuple[str, ...]
    """The model's own positions, and what became of them."""
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
) -> EquipReport:
    """Put encodings into a model, in place of its own positions. The model is changed.

    Its weights stay, with their names; the encodings are a new submodule, `zoo_encoding`. Plain
    "rope" takes base, rotary fraction and scaling of the model's own rotary embedding, if it has
    one, so that the model computes what it did before.

    Args:
        model: A model of transformers or timm, or an `nn.TransformerEncoder`,
            `nn.TransformerEncoderLayer` or `nn.MultiheadAttention` of torch.
        encoding: A name, a mapping with options, or a list of these.
        length: Length of training in tokens, or patches along each axis; by default what the
            model's configuration says. Some encodings need it.
        causal: Whether a module of torch gets a causal mask, by default not; models of the
            libraries know it themselves.
        backend: "auto", "reference", "chunked", "sdpa" or "flex".

    Returns:
        What was removed and added.

    Raises:
        OptionError: The model is of a family that is not known, or the encoding does not fit it.
            The model is then as before.
    """
    if is_equipped(model):
        raise OptionError("model", "the model is equipped already; call zoo.unequip(model) first")
    if backend not in BACKENDS:
        raise OptionError("backend", f"no backend {backend!r}; known are {', '.join(BACKENDS)}")
    adapter = find_adapter(model, causal)
    names, factories = _make_factories(encoding, adapter)
    equipment, removed = install(model, adapter, factories, length, backend)
    entries = [{"name": choice.name, **choice.options} for choice in _list_choices(encoding)]
    equipment.arguments = {"encoding": entries, "length": length, "backend": backend}
    return _report(names, equipment, removed, adapter.without_position)


def install(
    model: nn.Module,
    adapter: Adapter,
    factories: Mapping[str, EncodingFactory],
    length: int | tuple[int, ...] | None,
    backend: str,
) -> tuple[Equipment, list[str]]:
    """Install encodings in a model.

    Args:
        model: The model.
        adapter: Its adapter.
        factories: The encodings by name.
        length: As of `equip`.
        backend: The attention backend.

    Returns:
        What the model has now, and what was removed from it, in words.

    Raises:
        OptionError: The encodings do not fit the model, which is then as before.
    """
    equipment = Equipment(
        adapter.find_dims(length),
        factories,
        causal=adapter.causal,
        interleave=adapter.interleave,
        without_position=adapter.without_position,
        backend=backend,
    )
    example = next(model.parameters())
    equipment.to(device=example.device, dtype=example.dtype).train(model.training)

    surgery = Surgery()
    try:
        surgery.add_module(model, NAME, equipment)
        removed = adapter.install(equipment, surgery)
    except BaseException:
        surgery.undo()
        raise
    equipment.surgery = surgery
    return equipment, removed


def unequip(model: nn.Module) -> nn.Module:
    """Take the encodings out of a model, and give it its own positions back.

    Args:
        model: A model that `zoo.equip` changed.

    Returns:
        The same model.

    Raises:
        OptionError: The model is not equipped.
    """
    if not is_equipped(model):
        raise OptionError("model", "the model is not equipped")
    equipment = model.get_submodule(NAME)
    assert isinstance(equipment, Equipment)
    equipment.surgery.undo()
    return model


def is_equipped(model: nn.Module) -> bool:
    """Return whether a model has encodings of zoo."""
    return NAME in dict(model.named_children())


def find_adapter(model: nn.Module, causal: bool | None) -> Adapter:
    """Find the adapter of a model by the library that its class is from.

    Raises:
        OptionError: There is none, or the model cannot be equipped.
    """
    if type(model) in MODULES:
        return TorchAdapter(model, bool(causal))
    if causal is not None:
        problem = "models of transformers and timm know whether they are causal; leave it out"
        raise OptionError("causal", problem)
    libraries = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    if "transformers" in libraries:
        from zoo.integrations.transformers_models import TransformersAdapter

        return TransformersAdapter(model)
    if "timm" in libraries:
        from zoo.integrations.timm_models import TimmAdapter

        return TimmAdapter(model)
    known = ", ".join(f"nn.{cls.__name__}" for cls in MODULES)
    problem = f"{type(model).__name__} is no model of transformers or timm, and none of {known}"
    raise OptionError("model", f"{problem}; see zoo.Attention for a layer of your own model")


def _make_factories(
    encoding: EncodingSpec | Sequence[EncodingSpec], adapter: Adapter
) -> tuple[list[str], dict[str, EncodingFactory]]:
    """Return descriptions and factories of encodings; plain rope gets the model's own options."""
    descriptions: list[str] = []
    factories: dict[str, EncodingFactory] = {}
    for choice in _list_choices(encoding):
        if choice.name in factories:
            raise OptionError("encoding", f"{choice.name} is in the list twice; list it once")
        if choice.name == "rope" and not choice.options and adapter.own_ropes:
            factories["rope"] = _make_own_rope(adapter.own_ropes)
            choice = replace(choice, options=adapter.own_ropes[0])
        else:
            factories[choice.name] = make_factory(choice)
        descriptions.append(_describe(choice))
    return descriptions, factories


def _list_choices(encoding: EncodingSpec | Sequence[EncodingSpec]) -> list[Choice]:
    entries = [encoding] if isinstance(encoding, str | Mapping | Choice) else list(encoding)
    return [parse_entry(entry) for entry in entries]


def _make_own_rope(ropes: Sequence[Mapping[str, Any]]) -> EncodingFactory:
    """Make a factory of `rope` with the options of each layer."""
    factories = [make_factory(Choice("rope", dict(options))) for options in ropes]
    is_shared = all(options == ropes[0] for options in ropes)

    def make(dims: Dims) -> Encoding:
        encoding = factories[dims.layer](dims)
        encoding.shared = is_shared
        return encoding

    return make


def _describe(choice: Choice) -> str:
    options = ", ".join(f"{key}={value}" for key, value in choice.options.items())
    return f"{choice.name}({options})" if options else choice.name


def _report(
    names: Sequence[str], equipment: Equipment, removed: Sequence[str], bare: Sequence[int]
) -> EquipReport:
    count = sum(parameter.numel() for parameter in equipment.parameters())
    notes = (f"layers without positions, as before: {', '.join(map(str, bare))}",) if bare else ()
    layers = len(equipment.chains) - len(bare)
    return EquipReport(" + ".join(names), layers, count, tuple(removed), notes)


def save(model: nn.Module, folder: str | Path) -> Path:
    """Save an equipped model of transformers: weights, configuration and encodings.

    `from_pretrained` refuses the folder, because the model without its encodings would compute
    something else; `zoo.load_equipped` reads it.

    Args:
        model: A model that `zoo.equip` changed.
        folder: Where to save it; files of the same names are overwritten.

    Returns:
        The folder.

    Raises:
        OptionError: The model is not equipped, or none of transformers.
        PackageError: transformers or safetensors is missing.
    """
    with explain_imports():
        from safetensors.torch import save_model
        from transformers import PreTrainedModel

    if not is_equipped(model):
        raise OptionError("model", "the model is not equipped; save it with save_pretrained")
    if not isinstance(model, PreTrainedModel):
        problem = f"{type(model).__name__} is no model of transformers"
        raise OptionError("model", f"{problem}; save its state_dict, and equip it before loading")
    equipment = model.get_submodule(NAME)
    assert isinstance(equipment, Equipment)
    if not equipment.arguments:
        problem = "the model was built from a recipe, whose checkpoint keeps it"
        raise OptionError("model", problem)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    config[ENTRY] = {
        **equipment.arguments,
        "model_type": config["model_type"],
        "class": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    config |= {"model_type": MODEL_TYPE, "architectures": [f"ZooEquipped{type(model).__name__}"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_model(model, str(folder / WEIGHTS))
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    return folder


def load_equipped(folder: str | Path) -> nn.Module:
    """Load a model that `zoo.save` saved, in evaluation mode, with its encodings.

    Args:
        folder: The folder.

    Returns:
        The model of transformers. It cannot be unequipped: what was removed is not in the folder.

    Raises:
        OptionError: The folder holds no equipped model.
        PackageError: transformers or safetensors is missing.
    """
    with explain_imports():
        import transformers
        from safetensors.torch import load_model

    folder = Path(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entry = config.pop(ENTRY, None)
    if entry is None:
        raise OptionError("folder", f"{folder} holds no model that zoo.save saved")

    kind = entry["model_type"]
    config |= {"model_type": kind, "architectures": [entry["class"]]}
    cls = getattr(transformers, entry["class"])
    model: Any = cls(transformers.CONFIG_MAPPING[kind].from_dict(config))
    model = model.to(getattr(torch, entry["dtype"])).eval()
    length = entry["length"]
    equip(
        model,
        entry["encoding"],
        length=tuple(length) if isinstance(length, list) else length,
        backend=entry["backend"],
    )
    load_model(model, str(folder / WEIGHTS))
    if model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    model.get_submodule(NAME).surgery = Surgery(is_copy=True)
    return model
