"""Folders of equipped models of transformers, which `zoo.load` reads and transformers refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.errors import OptionError
from zoo.integrations.equipment import NAME, Equipment, is_equipped
from zoo.packages import explain_imports

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
        "model_type": config["model_type"],
        "class": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    config |= {"model_type": MODEL_TYPE, "architectures": [f"ZooEquipped{type(model).__name__}"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _save_weights(model.state_dict() if state_dict is None else state_dict, folder / WEIGHTS)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    return folder


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
