"""Folders for Hugging Face transformers: configuration, weights, tokenizer, pictures and card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo import config
from zoo.config import Recipe
from zoo.config.overrides import Overrides
from zoo.config.recipe import had_linear_attention
from zoo.data.corpus.tokenizer import Subwords
from zoo.data.pictures import read_pixels
from zoo.data.spec import DataSpec, ImageSpec, TextClassificationSpec, TextSpec, name_classes
from zoo.errors import CheckpointError, DataError, OptionError, RecipeError
from zoo.formats.export import ExportSource
from zoo.formats.model_card import write_card
from zoo.formats.published import TOKENIZER, Published
from zoo.formats.safetensors import write_weights
from zoo.formats.targets import ExportOptions
from zoo.formats.tokenizer_files import write_tokenizer
from zoo.packages import explain_imports
from zoo.run import checkpoint
from zoo.run.build import build_data
from zoo.run.checkpoint import read_spec
from zoo.run.load import build_stored_model, read_recipe, restore_content
from zoo.tasks.base import Task
from zoo.utils import write_json

CONFIG = Path("config.json")
MODULE = "modeling_zoo"


def build_model(metadata: Mapping[str, Any]) -> nn.Module:
    """Build the model of a configuration, with initial weights. Raises CheckpointError."""
    if had_linear_attention(metadata.get("recipe", {})):
        # transformers reads the weights itself, by names that are those of a mixer now
        reason = "written by zoo 0.3, which named the weights of linear attention otherwise"
        hint = "write the folder anew: zoo export FOLDER NEW_FOLDER to=hf"
        raise CheckpointError(f"{CONFIG}: {reason}; {hint}")
    return build_stored_model(metadata, CONFIG)


class PixelReader:
    """Makes model inputs of pictures as an evaluation does.

    Args:
        metadata: The entry `zoo` of an image processor's configuration.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        stored, name = metadata["recipe"], metadata["name"]
        recipe = config.from_plain(stored, origin="preprocessor_config.json", name=name)
        self.data = build_data(recipe)
        self.spec = read_spec({"zoo": metadata}, Path("preprocessor_config.json"))

    def read(self, pictures: Sequence[Any]) -> Tensor:
        """Return model inputs [B, C, H, W].

        Args:
            pictures: Pictures of Pillow, or uint8 arrays [H, W] or [H, W, C].

        Raises:
            DataError: A picture cannot be read.
        """
        with explain_imports():
            from PIL import Image

        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            paths = []
            for number, picture in enumerate(pictures):
                paths.append(Path(folder) / f"{number}.png")
                # as files, so that they are decoded and resized by the code of training
                try:
                    is_picture = isinstance(picture, Image.Image)
                    image = picture if is_picture else Image.fromarray(np.asarray(picture))
                    read_pixels(image, "RGB").save(paths[-1])
                except (OSError, TypeError, ValueError) as error:
                    raise DataError(f"picture {number}: {error}") from None
            batches = [*self.data.read_files(paths, self.spec)]
        for batch in batches:
            for path, message in batch.errors.items():
                raise DataError(f"picture {path.stem}: {message}")
        return torch.cat([batch.batch for batch in batches])


@dataclass(frozen=True)
class HeadClass:
    """A class of transformers that a model is loaded by.

    Attributes:
        auto: The auto class, such as "AutoModelForCausalLM".
        task: What the Hub calls the task.
    """

    auto: str
    task: str

    @property
    def own(self) -> str:
        """The class of modeling_zoo.py."""
        return self.auto.replace("AutoModel", "Zoo")


def choose_class(source: ExportSource) -> HeadClass:
    """Return the class that reads what the model reads.

    Raises:
        RecipeError: transformers has no such class.
    """
    spec, model = source.task.spec, source.task.model
    if isinstance(spec, TextClassificationSpec):
        return HeadClass("AutoModelForSequenceClassification", "text-classification")
    if isinstance(spec, TextSpec):
        if getattr(model, "mask_token", None) is not None:
            return HeadClass("AutoModelForMaskedLM", "fill-mask")
        return HeadClass("AutoModelForCausalLM", "text-generation")
    if type(spec) is not ImageSpec:
        message = f"models of {spec.noun} have no class in transformers that zoo writes"
        raise RecipeError(source.recipe.make_issue("data.name", message, "use to=safetensors"))
    return HeadClass("AutoModelForImageClassification", "image-classification")


def write_huggingface(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that `from_pretrained(folder, trust_remote_code=True)` of transformers loads.

    Raises:
        RecipeError: The model has no class in transformers.
    """
    chosen = choose_class(source)
    write_weights(source, options, folder)
    module = (Path(__file__).parent / f"{MODULE}.py").read_text(encoding="utf-8")
    (folder / f"{MODULE}.py").write_text(module, encoding="utf-8")
    write_json(describe_config(source, chosen), folder / CONFIG)

    spec = source.task.spec
    if spec.is_image:
        write_image_processor(source, folder)
    elif (vocabulary := spec.token_vocabulary) is not None:
        mask = getattr(source.task.model, "mask_token", None)
        write_tokenizer(vocabulary, folder, mask)
    if chosen.auto == "AutoModelForCausalLM":
        write_generation_config(source, folder)
    (folder / "README.md").write_text(write_card(source, chosen.task), encoding="utf-8")


def describe_config(source: ExportSource, chosen: HeadClass) -> dict[str, Any]:
    """Return config.json: the recipe, and the sizes under the names that tools look for."""
    spec, options = source.task.spec, source.recipe.model.options
    (dtype,) = {weight.dtype for weight in source.task.model.parameters()}
    content: dict[str, Any] = {
        # tools look for this class in transformers itself
        "architectures": [chosen.auto],
        "auto_map": {"AutoConfig": f"{MODULE}.ZooConfig", chosen.auto: f"{MODULE}.{chosen.own}"},
        "model_type": "zoo",
        "dtype": str(dtype).removeprefix("torch."),
        # zoo ties weights itself; transformers would tie them by names of its own
        "tie_word_embeddings": False,
        "zoo": source.metadata(),
    }
    sizes = {
        "dim": "hidden_size",
        "depth": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "patch_size": "patch_size",
    }
    content |= {name: options[key] for key, name in sizes.items() if options.get(key) is not None}
    if isinstance(spec, ImageSpec):
        content |= {"image_size": max(spec.grid), "num_channels": spec.channels}
    elif (vocabulary := spec.token_vocabulary) is not None:
        size = len(vocabulary)
        content |= {"vocab_size": size, "max_position_embeddings": spec.size[0]}
        content["zoo"] = reduce_vocabulary(content["zoo"], size)
    if spec.class_count is not None:
        content |= describe_labels(spec)
    return content


def describe_labels(spec: DataSpec) -> dict[str, Any]:
    """Return the names of classes, in both directions."""
    labels = name_classes(spec, spec.class_count or 0)
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def reduce_vocabulary(metadata: dict[str, Any], size: int) -> dict[str, Any]:
    """Leave out subwords, which tokenizer.json has; the model is built with their number."""
    samples = metadata["samples"]
    if samples["vocabulary"]["kind"] != "subword":
        return metadata
    count = {"kind": "count", "size": str(size)}
    return {**metadata, "samples": {**samples, "vocabulary": count}}


def write_image_processor(source: ExportSource, folder: Path) -> None:
    """Write the configuration of ZooImageProcessor, unless the data source reads no pictures."""
    try:
        build_data(source.recipe).read_files([], source.task.spec)
    except OptionError:
        return  # samples that are generated
    spec = source.task.spec
    assert isinstance(spec, ImageSpec)
    write_json(
        {
            "image_processor_type": "ZooImageProcessor",
            "auto_map": {"AutoImageProcessor": f"{MODULE}.ZooImageProcessor"},
            "size": {"height": spec.height, "width": spec.width},
            "zoo": source.metadata(),
        },
        folder / "preprocessor_config.json",
    )


def write_generation_config(source: ExportSource, folder: Path) -> None:
    """Write how `generate` samples by default: as `zoo generate` does with this recipe.

    How many tokens it writes is left out: it would prevail over what a program asks for.
    """
    options = source.recipe.generate
    content: dict[str, Any] = {"do_sample": options.temperature > 0}
    if options.temperature > 0:
        content |= {
            "temperature": options.temperature,
            "top_k": options.top_k or 0,
            "top_p": 1.0 if options.top_p is None else options.top_p,
        }
    if (folder / "tokenizer_config.json").exists():
        names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        tokens = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        numbers = {token["content"]: token["id"] for token in tokens}
        for key in ("eos", "pad"):
            if f"{key}_token" in names:
                content[f"{key}_token_id"] = numbers[names[f"{key}_token"]]
    write_json(content, folder / "generation_config.json")


def restore_exported(
    published: Published, source: Path, overrides: Overrides
) -> tuple[Recipe, Task]:
    """Restore a model that `zoo export to=hf` wrote and transformers may have trained further.

    Raises:
        CheckpointError: There is no recipe in config.json, or the weights are not those of it.
        RecipeError: An override is wrong.
    """
    metadata = published.config.get("zoo")
    content = {"zoo": metadata, "state_dict": dict(published.weights)}
    checkpoint.require_checkpoint(content, source)
    assert isinstance(metadata, dict)
    if published.tokenizer is not None:
        content["zoo"] = restore_vocabulary(metadata, published.tokenizer)
    recipe = read_recipe(content, source, overrides)
    _, task = restore_content(content, source, recipe)
    return recipe, task


def restore_vocabulary(metadata: dict[str, Any], tokenizer: str) -> dict[str, Any]:
    """Return metadata with the subwords of a tokenizer where they have the number of subwords.

    Tokens that were added behind the model's own, such as one that pads, are left out.
    """
    samples: Any = metadata.get("samples")
    stored = samples.get("vocabulary") if isinstance(samples, dict) else None
    if not isinstance(stored, dict) or stored.get("kind") != "count":
        return metadata
    try:
        settings, size = json.loads(tokenizer), int(stored["size"])
        added = [token for token in settings["added_tokens"] if token["id"] < size]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{TOKENIZER}: not a tokenizer file of transformers: {error!r}"
        ) from None
    subwords = Subwords(json.dumps({**settings, "added_tokens": added}, ensure_ascii=False))
    return {**metadata, "samples": {**samples, "vocabulary": subwords.to_dict()}}
