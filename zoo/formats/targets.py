"""The formats of an export: what writes each, what it needs, and the options of an export.

This module imports no torch: a wrong option is refused before that takes time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting
from zoo.options import Between


class Target(NamedTuple):
    """A format of an export.

    Attributes:
        writer: The function that writes it, `module:name`. It is called with an ExportSource, the
            options, and an empty folder. It returns the difference of a graph from the model, or
            None, and raises RecipeError with every option that stands in the way.
        packages: The distributions that it needs for any model.
    """

    writer: str
    packages: tuple[str, ...]


WEIGHTS = ("safetensors",)
FOLDER = ("safetensors", "huggingface-hub")
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "hf": Target("zoo.formats.huggingface:write_huggingface", FOLDER),
        "hub_folder": Target("zoo.formats.hub_folder:write_hub_folder", FOLDER),
        "llama": Target("zoo.formats.llama:write_llama", FOLDER),
        "vit": Target("zoo.formats.vit:write_vit", FOLDER),
        "qwen3": Target("zoo.formats.llama:write_qwen3", FOLDER),
        "smollm3": Target("zoo.formats.smollm3:write_smollm3", FOLDER),
        "olmo3": Target("zoo.formats.olmo:write_olmo3", FOLDER),
        "gemma2": Target("zoo.formats.gemma:write_gemma2", FOLDER),
        "gemma3": Target("zoo.formats.gemma:write_gemma3", FOLDER),
        "cohere2": Target("zoo.formats.cohere:write_cohere2", FOLDER),
        "onnx": Target(
            "zoo.formats.traced:write_onnx", ("onnx", "onnx-ir", "onnxruntime", "onnxscript")
        ),
        "safetensors": Target("zoo.formats.safetensors:write_weights", WEIGHTS),
        "torch_export": Target("zoo.formats.traced:write_torch_export", ()),
    }
)

NAME = re.compile(r"\w([\w.-]{0,94}\w)?", re.ASCII)
"""An owner or a name on the Hub."""

OWN_MODELS = ("hf", "llama", "qwen3", "smollm3", "olmo3", "gemma2", "gemma3", "cohere2", "vit")
"""Targets that hold a model of zoo: they build it, or write its weights under other names."""

GRAPHS = ("onnx", "torch_export")
"""Targets that hold a graph of what a model computes."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The format of an export, and its destination."""

    to: Literal[
        "hf",
        "hub_folder",
        "llama",
        "qwen3",
        "smollm3",
        "olmo3",
        "gemma2",
        "gemma3",
        "cohere2",
        "vit",
        "onnx",
        "safetensors",
        "torch_export",
    ]
    """The format: hf, a folder for Hugging Face transformers; hub_folder, weights, recipe, card and
    checksums, which zoo reads again, also from the Hub; llama to vit, a folder that needs no zoo,
    if the recipe is such a model; onnx, a graph for ONNX Runtime; safetensors, only weights and
    recipe; torch_export, a graph for PyTorch."""

    features: tuple[Annotated[int, Between(0)], ...] = ()
    """Numbers of blocks of a vision transformer from 0. The graph (onnx, torch_export) then
    computes the maps of patches after them in place of logits."""

    push: str | None = None
    """A new repository of the Hugging Face Hub, owner/name, that the folder is uploaded to."""

    dtype: Literal["float32", "float16"] | None = None
    """Of hub_folder, how weights are stored; null: float32."""

    licence: str | None = None
    """Of hub_folder, the licence of the weights as the Hub names it, such as apache-2.0."""


def list_packages(options: ExportOptions) -> tuple[str, ...]:
    """Return the distributions that an export needs, whatever its model."""
    upload = () if options.push is None else ("huggingface-hub",)
    return (*TARGETS[options.to].packages, *upload)


def check_options(options: ExportOptions) -> None:
    """Refuse options that the format of an export does not have.

    Raises:
        RecipeError: With every such option.
    """
    issues = []
    for key in ("dtype", "licence"):
        if options.to != "hub_folder" and getattr(options, key) is not None:
            message = f"of to={options.to} there is no such choice"
            issues.append(ConfigIssue(ARGUMENT, key, message, "leave it out"))
    if options.features and options.to not in GRAPHS:
        message = f"to={options.to} holds a model, and features are outputs of a graph"
        hint = Message("use ", Setting("to", "onnx"), ", or leave it out")
        issues.append(ConfigIssue(ARGUMENT, "features", message, hint))
    if options.push is not None and not is_repository(options.push):
        message = f"{options.push!r} is not a repository"
        issues.append(ConfigIssue(ARGUMENT, "push", message, "write owner/name"))
    if issues:
        raise RecipeError(*issues)


def is_repository(text: str) -> bool:
    """Return whether text has the form owner/name, as huggingface_hub takes it."""
    parts = text.split("/")
    has_names = len(parts) == 2 and all(map(NAME.fullmatch, parts))
    return has_names and not ("--" in text or ".." in text or text.endswith(".git"))
