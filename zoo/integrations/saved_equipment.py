"""Folders of equipped models of transformers, which `zoo.load` reads and transformers refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.errors import CheckpointError, OptionError, refuse_type
from zoo.integrations.equipment import NAME, Equipment, is_equipped
from zoo.packages import explain_imports
from zoo.utils import escape_text, raise_if_out_of_memory
from zoo.weights import FLOATS, describe_fault

# transformers does not look for weights under this name, and prints the unknown model type.
WEIGHTS = "equipped.safetensors"
MODEL_TYPE = "zoo_equipped, which zoo.load reads"
ENTRY = "zoo"  # the key of the encodings in the configuration


def save(
    model: nn.Module, folder: str | Path, *, state_dict: Mapping[str, Tensor] | None = None
) -> Path:
    """Save an equipped model of transformers: weights, configuration and encodings.

    `zoo.load` reads the folder. `from_pretrained` refuses it, because the model without
    its encodings would give other outputs. `model.save_pretrained` and a `Trainer` of transformers
    write the same.

    Args:
        model: A model that `zoo.equip` changed. Adapters of peft on it are merged in the folder.
        folder: The folder to write; existing files are overwritten.
        state_dict: The weights by name, as gathered from several processes; the model's by default.

    Returns:
        The folder.

    Raises:
        OptionError: The model is not equipped, or is no model of transformers.
        PackageError: transformers or safetensors is missing.
    """
    if not isinstance(model, nn.Module):
        raise refuse_type("model", model, "a model")
    if not isinstance(folder, (str, os.PathLike)):
        raise refuse_type("folder", folder, "a path")
    with explain_imports():
        from transformers import PreTrainedModel

    # A model with adapters of peft is saved as the model into which they are merged.
    merge = getattr(model, "merge_and_unload", None)
    if merge is not None:
        model = deepcopy(model).merge_and_unload()  # type: ignore[operator]
    if not is_equipped(model):
        raise OptionError("model", "the model is not equipped; save it with save_pretrained")
    if not isinstance(model, PreTrainedModel):
        problem = f"{type(model).__name__} is no model of transformers"
        raise OptionError("model", f"{problem}; save its state_dict, and equip it before loading")
    equipment = model.get_submodule(NAME)
    assert isinstance(equipment, Equipment)
    if not equipment.arguments:
        problem = "the model was built from a recipe, whose checkpoint contains it"
        raise OptionError("model", problem)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The full configuration, with another model type and architecture, which transformers refuses.
    config: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    config[ENTRY] = {
        **equipment.arguments,
        "turned_channels": "part",
        "model_type": config["model_type"],
        "class": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    config |= {"model_type": MODEL_TYPE, "architectures": [f"ZooEquipped{type(model).__name__}"]}
    if (is_tied := _is_tied(model)) is not None:
        # the configuration may say otherwise, and decides what transformers builds
        config["tie_word_embeddings"] = is_tied
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _save_weights(model.state_dict() if state_dict is None else state_dict, folder / WEIGHTS)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    return folder


def _is_tied(model: Any) -> bool | None:
    """Return whether the embeddings of tokens are the head; None if the model has not both."""
    try:
        table, head = model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:
        # models of pictures and sounds
        return None
    if table is None or head is None:
        return None
    return bool(table.weight is head.weight)


def _save_weights(state_dict: Mapping[str, Tensor], path: Path) -> None:
    """Write weights to a file of safetensors. Those that share memory are written once."""
    with explain_imports():
        from safetensors.torch import save_file

    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state_dict.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (name,)
        first.setdefault((*place, tensor.device), name)
    save_file({name: state_dict[name].contiguous() for name in first.values()}, str(path))


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Load the weights that `save` wrote into a model that is equipped in the same way."""
    with explain_imports():
        from safetensors.torch import load_model

    load_model(model, str(Path(folder) / WEIGHTS))


def holds_equipped(path: str | Path) -> bool:
    """Return whether `save` wrote a folder."""
    return (Path(path) / WEIGHTS).is_file()


@dataclass(frozen=True)
class SavedModel:
    """The folder that `save` wrote, checked as far as it can be without building the model.

    Attributes:
        config: The configuration of transformers, without what is below.
        weights: The weights by name.
        kind: The model type of transformers.
        name: The class of the model.
        dtype: The type of its weights.
        encoding: The encodings with their options.
        length: The training length, as in `equip`.
        backend: The attention backend.
        layers: Indices of the equipped layers, or "all", as in `equip`.
        position_augmentation: Changes of positions in training, as in `equip`.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    kind: str
    name: str
    dtype: torch.dtype
    encoding: Sequence[Mapping[str, Any]]
    length: int | tuple[int, ...] | None
    backend: str
    layers: tuple[int, ...] | Literal["all"] = "all"
    position_augmentation: Mapping[str, Any] | None = None


def read_saved(folder: Path) -> SavedModel:
    """Read what `save` wrote.

    Raises:
        CheckpointError: A file is damaged, or there is no such model.
        PackageError: safetensors is missing.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, RecursionError, ValueError) as error:
        raise CheckpointError(f"{path}: not JSON: {str(error)[:120]}") from None
    entry = config.pop(ENTRY, None) if isinstance(config, dict) else None
    if entry is None:
        raise CheckpointError(f"{path}: describes no model that zoo.save saved")
    try:
        length = entry["length"]
        saved = SavedModel(
            config=_drop_implementations(config),
            weights=_read_weights(folder / WEIGHTS),
            kind=_require(entry["model_type"], str),
            name=_require(entry["class"], str),
            dtype={str(one).removeprefix("torch."): one for one in FLOATS}[entry["dtype"]],
            encoding=_read_encodings(entry),
            length=tuple(length) if isinstance(length, list) else length,
            backend=_require(entry["backend"], str),
            layers=_read_layers(entry.get("layers")),
            position_augmentation=_read_mapping(entry.get("position_augmentation")),
        )
        for size in saved.length if isinstance(saved.length, tuple) else [saved.length]:
            _require(size or 1, int)
    except (LookupError, TypeError) as error:
        problem = f"its entry {ENTRY} is damaged: {error!r:.200}"
        raise CheckpointError(escape_text(f"{path}: {problem}")) from None
    return saved


def _read_encodings(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the encodings with their options. Raises TypeError for anything else."""
    encodings = [_require(one, dict) for one in _require(entry["encoding"], list)]
    if entry.get("turned_channels") == "part":
        return encodings
    # Folders of 0.3.0: a rope with options turned all channels, also where the model turns a part.
    return [
        {"rotary_fraction": 1.0, **one} if one.get("name") == "rope" and len(one) > 1 else one
        for one in encodings
    ]


def _read_layers(layers: Any) -> tuple[int, ...] | Literal["all"]:
    """Return indices of layers. Raises TypeError for anything else."""
    if layers is None:
        return "all"
    return tuple(_require(one, int) for one in _require(layers, list))


def _read_mapping(value: Any) -> Mapping[str, Any] | None:
    """Return a mapping or None. Raises TypeError for anything else."""
    return None if value is None else _require(value, dict)


def _require(value: Any, kind: type) -> Any:
    """Return a value of a type. Raises TypeError for another one."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _drop_implementations(config: Any) -> Any:
    """Return a configuration without choices of code that transformers would download."""
    if isinstance(config, list):
        return [_drop_implementations(one) for one in config]
    if not isinstance(config, dict):
        return config
    if config.keys() == {"__float__"}:
        # how transformers writes infinity
        return float(config["__float__"])
    return {
        key: _drop_implementations(value)
        for key, value in config.items()
        if not key.endswith("_implementation") and key not in ("auto_map", "quantization_config")
    }


def _read_weights(path: Path) -> dict[str, Tensor]:
    with explain_imports():
        from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except Exception as error:
        raise_if_out_of_memory(error)
        # Its error class is not public.
        raise CheckpointError(f"{path}: unreadable: {str(error)[:120]}") from None
    # Buffers may hold whole numbers, and their names are not known yet.
    for name, weight in weights.items():
        fault = describe_fault(weight)
        if fault and weight.dtype in FLOATS:
            raise CheckpointError(escape_text(f"{path}: {name} {fault}"))
    return weights


def find_model_class(saved: SavedModel, path: Path) -> Any:
    """Return the class of a saved model. Nothing but a model of transformers is ever called.

    Raises:
        CheckpointError: The class is none, or one of another configuration.
    """
    with explain_imports():
        import transformers

    found = None
    if saved.name.isidentifier() and not saved.name.startswith("_"):
        found = getattr(transformers, saved.name, None)
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if not is_model or saved.kind not in transformers.CONFIG_MAPPING:
        shown = f"{saved.name!r:.60} of {saved.kind!r:.60}"
        raise CheckpointError(f"{path}: {shown} is no model of transformers; nothing of it was run")
    own = transformers.CONFIG_MAPPING[saved.kind]
    # Some types have no class of their own, and use that of another type.
    mappings = (transformers.MODEL_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING)
    is_mapped = any(own in mapping and mapping[own] is found for mapping in mappings)
    if found.config_class is not own and not is_mapped:  # type: ignore[union-attr]
        problem = f"{saved.name} is no model of {saved.kind}"
        raise CheckpointError(f"{path}: {problem}; nothing of it was run")
    return found
