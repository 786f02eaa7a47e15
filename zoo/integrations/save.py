"""Equipped models of transformers in a folder: weights, configuration and encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.errors import OptionError
from zoo.integrations.equip import NAME, equip, is_equipped
from zoo.integrations.equipment import Equipment, Surgery
from zoo.packages import explain_imports

WEIGHTS = "equipped.safetensors"  # under another name than transformers looks for
MODEL_TYPE = "zoo_equipped, which zoo.load_equipped reads"  # transformers prints it
ENTRY = "zoo"


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
