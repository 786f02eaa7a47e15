"""Folders for Hugging Face transformers: configuration, weights, tokenizer, pictures and card."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo import config, files
from zoo.citations import find_citations
from zoo.data.spec import ImageSpec, TextClassificationSpec, TextSpec, VideoSpec, Vocabulary
from zoo.errors import CheckpointError, ConfigIssue, DataError, OptionError, RecipeError
from zoo.formats.export import ExportOptions, ExportSource, write_weights
from zoo.packages import explain_imports
from zoo.reporting.tables import disarm_markdown, format_markdown
from zoo.run import run_dir
from zoo.run.build import build_data
from zoo.run.checkpoint import read_spec
from zoo.run.load import build_stored_model
from zoo.utils import escape_text
from zoo.version import __version__

CONFIG = Path("config.json")
MODULE = "modeling_zoo"
MASK_TOKENS = ("[MASK]", "<mask>", "<|mask|>")
PAD_TOKENS = ("[PAD]", "<pad>")
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


def build_model(metadata: Mapping[str, Any]) -> nn.Module:
    """Build the model of a configuration, with initial weights. Raises CheckpointError."""
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
                is_picture = isinstance(picture, Image.Image)
                image = picture if is_picture else Image.fromarray(np.asarray(picture))
                paths.append(Path(folder) / f"{number}.png")
                image.save(paths[-1])
            batches = [*self.data.read_files(paths, self.spec)]
        for batch in batches:
            for path, problem in batch.errors.items():
                raise DataError(f"picture {path.stem}: {problem}")
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
    if isinstance(spec, VideoSpec):
        problem = f"models of {spec.noun} have no class in transformers that zoo writes"
        raise RecipeError(source.recipe.make_issue("data.name", problem, "use to=safetensors"))
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
    files.write_json(describe_config(source, chosen), folder / CONFIG)

    spec = source.task.spec
    if isinstance(spec, ImageSpec):
        write_image_processor(source, folder)
    else:
        mask = getattr(source.task.model, "mask_token", None)
        write_tokenizer(spec.vocabulary, folder, mask)
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
    else:
        size = len(spec.vocabulary)
        content |= {"vocab_size": size, "max_position_embeddings": spec.length}
        content["zoo"] = reduce_vocabulary(content["zoo"], size)
    if isinstance(spec, ImageSpec | TextClassificationSpec):
        content |= describe_labels(spec)
    return content


def describe_labels(spec: ImageSpec | TextClassificationSpec) -> dict[str, Any]:
    """Return the names of classes, in both directions."""
    labels = spec.names or tuple(map(str, range(spec.classes)))
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
    files.write_json(
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
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    numbers = {token["content"]: token["id"] for token in tokens}
    for key in ("eos", "pad"):
        if f"{key}_token" in names:
            content[f"{key}_token_id"] = numbers[names[f"{key}_token"]]
    files.write_json(content, folder / "generation_config.json")


def write_tokenizer(
    vocabulary: Vocabulary, folder: Path, mask: int | None, extend: bool = True
) -> None:
    """Write tokenizer.json and its configuration for `PreTrainedTokenizerFast`.

    A token that ends or pads and is not in the vocabulary gets the number after it. The model never
    predicts it, and padding is masked.

    Args:
        vocabulary: The vocabulary of the model.
        folder: The folder.
        mask: The number of the mask token, if the model has one.
        extend: Add tokens that end and pad to a vocabulary without them.

    Raises:
        RecipeError: The vocabulary has numbers without a token.
    """
    tokenizer = build_tokenizer(vocabulary)
    special: dict[str, str] = {}

    def add(kind: str, candidates: Sequence[str], number: int | None = None) -> None:
        known = [one for one in candidates if tokenizer.token_to_id(one) is not None]
        if known and number is None:
            special[f"{kind}_token"] = known[0]
            return
        if not extend:
            return
        content = next(one for one in candidates if one not in known)
        tokenizer.add_special_tokens([content])
        special[f"{kind}_token"] = content
        if number is not None and tokenizer.token_to_id(content) != number:
            problem = f"the vocabulary ends before {number}: some numbers have no token"
            raise RecipeError(ConfigIssue("tokenizer", "", problem))

    if mask is not None:
        add("mask", MASK_TOKENS, mask)
        add("pad", PAD_TOKENS)
    else:
        add("eos", END_TOKENS)
        add("pad", (*PAD_TOKENS, *special.values()))
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "padding_side": "right" if mask is not None else "left",
        **special,
    }
    files.write_json(settings, folder / "tokenizer_config.json")


def build_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer of the library tokenizers with the numbers of a vocabulary."""
    with explain_imports():
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    data = vocabulary.to_dict()
    if data["kind"] == "subword":
        settings = json.loads(data["json"])
        settings |= {"truncation": None, "padding": None}
        post = settings.get("post_processor") or {}
        if post.get("type") != "ByteLevel":
            settings["post_processor"] = None  # zoo adds no special tokens
        return Tokenizer.from_str(json.dumps(settings))

    if data["kind"] == "byte":
        # the library writes bytes as printable characters
        symbols = _list_byte_symbols()
        tokenizer = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(symbols)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    is_words = data["kind"] == "word"
    pieces = data["words"].split() if is_words else list(data["symbols"])
    tokenizer = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate(pieces)}))
    if is_words:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _list_byte_symbols() -> list[str]:
    """Return the character that stands for each byte in byte-level vocabularies (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    symbols |= {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]


USES = {
    "text-generation": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({path}, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained({path}, trust_remote_code=True)
inputs = tokenizer({prompt}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={tokens})[0]))""",
    "image-classification": """\
from transformers import pipeline

classify = pipeline("image-classification", model={path}, trust_remote_code=True)
print(classify("picture.png"))""",
    "fill-mask": """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({path}, trust_remote_code=True)
model = AutoModelForMaskedLM.from_pretrained({path}, trust_remote_code=True)""",
    "text-classification": """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({path}, trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained({path}, trust_remote_code=True)""",
}
"""How a model is used, by what the Hub calls its task."""
NO_RESULTS = "None are recorded for this checkpoint."
CARD = """\
---
{front_matter}
---

# {name}

A model of the recipe {name}, trained with [zoo](https://github.com/transformer-zoo/zoo)
{version}. Positional encoding: {encoding}. Parameters: {parameters:,}.

## Use

{requirement}

```python
{use}
```

## Results

{results}

## Recipe

`zoo fit recipe.yaml` repeats the run.

{fence}yaml
{text}
{fence}

## Environment

{environment}

## Citation

```bibtex
{citation}
```
"""


def write_card(source: ExportSource, task: str, needs_zoo: bool = True) -> str:
    """Return README.md: how to use the model, its results, recipe, environment and papers.

    Args:
        source: The model.
        task: What the Hub calls its task.
        needs_zoo: Whether zoo computes it, through `trust_remote_code`.
    """
    recipe, run = source.recipe, run_dir.find_run_dir(source.checkpoint)
    is_best = source.checkpoint.name == "best.ckpt"
    metrics: dict[str, float] = _read_record(run / "end.json", _read_metrics, {}) if is_best else {}
    environment = run / "environment.json"
    encodings = [choice.name for choice in recipe.model.options.get("encoding", ())]
    rows = [[disarm_markdown(key), f"{value:.4f}"] for key, value in metrics.items()]
    table = format_markdown(["metric", "value"], rows, text=("metric",))
    text = recipe.yaml().strip()
    # JSON's strings are Python's, too; names and prompts may hold quotes and newlines
    use = USES[task].format(
        path=json.dumps(recipe.name, ensure_ascii=False),
        prompt=json.dumps(recipe.generate.prompt or "...", ensure_ascii=False),
        tokens=recipe.generate.tokens,
    )
    requirement = "Install zoo, which computes the model: `pip install transformer-zoo`."
    if not needs_zoo:
        use = use.replace(", trust_remote_code=True", "")
        requirement = "transformers computes the model itself."
    card = CARD.format(
        front_matter=_format_front_matter(source, task, metrics),
        name=disarm_markdown(recipe.name),
        version=__version__,
        encoding=", ".join(encodings),
        parameters=sum(weight.numel() for weight in source.task.model.parameters()),
        use=use,
        requirement=requirement,
        results=f"On test data of `{recipe.data.name}`:\n\n{table}" if metrics else NO_RESULTS,
        text=text,
        # longer than any in the recipe
        fence=max(["``", *re.findall("`+", text)], key=len) + "`",
        environment=_read_record(environment, _format_environment, "It is not recorded."),
        citation="\n\n".join(_list_citations(encodings)) or "% none",
    )
    return escape_text(card, keep="\n")


def _read_record(path: Path, read: Callable[[dict[str, Any]], Any], default: Any) -> Any:
    """Return what is read of a recorded file of a run; the default where there is none.

    Raises:
        CheckpointError: It is damaged.
    """
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return default
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: unreadable, not as zoo writes it: {error}") from None


def _read_metrics(found: Mapping[str, Any]) -> dict[str, float]:
    metrics = found.get("metrics", {})
    return {key: float(value) for key, value in metrics.items() if value is not None}


def _format_front_matter(source: ExportSource, task: str, metrics: Mapping[str, float]) -> str:
    with explain_imports():
        from huggingface_hub import EvalResult, ModelCardData

    recipe = source.recipe
    results = [
        EvalResult(
            task_type=task,
            dataset_type=recipe.data.name,
            dataset_name=recipe.data.name,
            dataset_split="test",
            metric_type=key.rpartition("/")[2],
            metric_value=value,
        )
        for key, value in metrics.items()
    ]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["zoo"],
        model_name=escape_text(recipe.name) if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _format_environment(found: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    devices = ", ".join(found["devices"]["cuda"]) or found["devices"]["processor"]
    lines = [f"zoo {found['zoo']}, {packages}", f"Python {found['python']}, {found['platform']}"]
    lines += [f"devices: {devices}", str(found["started"])]
    return "\n".join(f"- {disarm_markdown(line)}" for line in lines)


def _list_citations(encodings: Sequence[str]) -> list[str]:
    """Return the papers of encodings, each once; one of a plug-in need not name any."""
    entries: list[str] = []
    for name in encodings:
        try:
            entries += find_citations(name)
        except (RecipeError, DataError):
            continue
    return list(dict.fromkeys(entries))
