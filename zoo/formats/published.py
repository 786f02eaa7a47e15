"""Published weights, and the base class of the families of models that they belong to."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.data.spec import DataSpec, ImageSpec, TextSpec, Vocabulary
from zoo.errors import CheckpointError
from zoo.utils import escape_text
from zoo.weights import describe_fault


@dataclass(frozen=True)
class Published:
    """The contents of a folder or a file of published weights.

    Attributes:
        name: A name for the recipe.
        config: config.json; empty where there is none.
        weights: The tensors by name.
        tokenizer: tokenizer.json; None where there is none.
        origin: Where the entries of `config` come from.
        fields: The origin's own names of entries, where they differ from those of config.json.
    """

    name: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    tokenizer: str | None = None
    origin: str = "config.json"
    fields: Mapping[str, str] = field(default_factory=dict)

    def name_fields(self, problem: str) -> str:
        """Return a problem with the origin's own names of entries."""
        return re.sub(r"\w+", lambda word: self.fields.get(word[0], word[0]), problem)


class EntryError(CheckpointError):
    """An entry of a configuration is wrong. Whoever read it names the file in front of it."""


TOKENIZER = "tokenizer.json"
EQUIP = "zoo.equip changes the encodings of such a model of transformers in place"
"""The way on for models that zoo's decoder cannot be."""
MAX_LISTED = 20
"""Issues of one kind that a message lists."""


def raise_issues(source: Path, problem: str, issues: Sequence[str]) -> None:
    """Raise CheckpointError with all issues, if there are any."""
    rest = len(issues) - MAX_LISTED
    more = [f"and {rest} more"] if rest > 0 else []
    if issues:
        listed = map(escape_text, [f"{source}: {problem}", *issues[:MAX_LISTED], *more])
        raise CheckpointError("\n  ".join(listed))


Change = Callable[[Tensor], Tensor]


class Pool:
    """Published weights that are taken one by one.

    Attributes:
        missing: Names that were asked for and are not there.
        faults: What is wrong with weights that were taken, each with its name.
        rest: Weights that nobody has taken.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.rest, self.missing, self.faults = dict(weights), list[str](), list[str]()
        self.taken: dict[str, Tensor] = {}

    def take(self, name: str, target: str, change: Change = lambda weight: weight) -> None:
        """Take a weight over as `target`, or note that it is missing."""
        if name not in self.rest:
            self.missing.append(name)
            return
        weight = self.rest.pop(name)
        if fault := describe_fault(weight):
            self.faults.append(f"{name} {fault}")
            return
        self.taken[target] = self._change(name, weight, change)

    def take_layers(
        self, model: Mapping[str, str], block: Mapping[str, str], prefix: str, depth: int
    ) -> None:
        """Take the weights, and biases where there are any, of layers; see `rename_layers`."""
        names = {other: own for own, other in model.items()}
        for number in range(depth):
            start = prefix.format(number)
            names |= {start + other: f"blocks.{number}.{own}" for own, other in block.items()}
        for other, own in names.items():
            self.take(f"{other}.weight", f"{own}.weight")
            if f"{other}.bias" in self.rest:
                self.take(f"{other}.bias", f"{own}.bias")

    def change(self, pattern: str, change: Change) -> None:
        """Change all weights taken whose names match a pattern as a whole."""
        for name in self.taken:
            if re.fullmatch(pattern, name):
                self.taken[name] = self._change(name, self.taken[name], change)

    def _change(self, name: str, weight: Tensor, change: Change) -> Tensor:
        try:
            return change(weight)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            cause = (str(error).splitlines() or [type(error).__name__])[0][:120]
            problem = f"{name} {list(weight.shape)} does not have the shape of its configuration"
            raise CheckpointError(f"{problem}: {cause}") from None

    def drop(self, pattern: str) -> list[str]:
        """Drop weights that a model of zoo has no use for; return their names."""
        names = [name for name in self.rest if re.fullmatch(pattern, name)]
        for name in names:
            del self.rest[name]
        return names

    def has(self, pattern: str) -> bool:
        """Return whether the name of a remaining weight matches a pattern as a whole."""
        return any(re.fullmatch(pattern, name) for name in self.rest)

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a weight of a rank. Raises CheckpointError if there is none."""
        if name not in self.rest:
            raise CheckpointError(f"missing: {name}")
        found = tuple(self.rest[name].shape)
        if len(found) != rank:
            problem = f"{name} has {len(found)} dimensions, not {rank}"
            raise CheckpointError(f"wrong number of dimensions: {problem}")
        return found


class Configuration(Mapping[str, Any]):
    """A configuration that remembers which of its entries were read."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries, self.read = dict(entries), set[str]()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


IGNORED = frozenset(
    {
        # what a model is called, who wrote it, and how its results are returned
        "model_type",
        "architectures",
        "auto_map",
        "_name_or_path",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "tokenizer_class",
        "task_specific_params",
        "vocab_size",
        "return_dict",
        "use_return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "torchscript",
        "use_cache",
        "cache_implementation",
        "_commit_hash",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_autoset",
        # tokens with a role, which texts have or not
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "unk_token_id",
        "cls_token_id",
        "sep_token_id",
        "mask_token_id",
        # training, of which a recipe says its own
        "initializer_range",
        "initializer_factor",
        "gradient_checkpointing",
        "chunk_size_feed_forward",
        "pretraining_tp",
        "attention_dropout",
        "attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "drop_path_rate",
        # what `generate` does by default
        "max_length",
        "min_length",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "num_beams",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "early_stopping",
    }
)
"""Entries of any configuration that change nothing of what a model computes."""
EXPECTED: Mapping[str, Any] = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
}
"""Entries of any configuration that zoo knows one value of."""


class PublishedFamily(ABC):
    """Models of one architecture.

    Args:
        config: The configuration of transformers; empty where there is none.
        pool: The weights.
        vocabulary: The tokens; None for images.
    """

    prefix = ""
    """What names begin with in a file with a head, and do not in one without."""

    dropped = r"$^"
    """Pattern of weights that zoo has no use for."""

    ignored: frozenset[str] = frozenset()
    """Entries of the configuration that change nothing, in addition to IGNORED."""

    def __init__(
        self, config: Mapping[str, Any], pool: Pool, vocabulary: Vocabulary | None
    ) -> None:
        self.config, self.pool, self.vocabulary = Configuration(config), pool, vocabulary
        if self.prefix and not pool.has(f"{re.escape(self.prefix)}.*"):
            heads = ("lm_head.", "cls.", "classifier.")
            pool.rest = {
                name if name.startswith(heads) else self.prefix + name: weight
                for name, weight in pool.rest.items()
            }

    @abstractmethod
    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        """Return the sections model, data and task of a recipe, and the facts of its data.

        Raises:
            CheckpointError: zoo has no recipe for the configuration.
        """

    @abstractmethod
    def rename(self, heads: int) -> None:
        """Take the weights that the model has; `heads` are those of the recipe."""

    def require(self, **values: Any) -> None:
        """Check entries of the configuration, where they are given.

        Raises:
            CheckpointError: With all entries that zoo has no recipe for.
        """
        wrong = [
            f"{key} is {self.config[key]}, expected {right}"
            for key, right in values.items()
            if self.config.get(key, right) not in (right, None)
        ]
        if wrong:
            raise CheckpointError("zoo has no recipe for it: " + "; ".join(wrong))

    def check_read(self) -> None:
        """Check that every entry of the configuration was read, after `describe`.

        Raises:
            CheckpointError: With all entries that nobody reads: they may change what is computed.
        """
        self.require(**EXPECTED)
        known = self.config.read | IGNORED | self.ignored
        unread = [
            f"{key}={value!r:.60}"
            for key, value in self.config.entries.items()
            if key not in known and value is not None
        ]
        if unread:
            remedy = "delete what changes nothing of what the model computes"
            problem = f"{', '.join(sorted(unread))} is not read"
            raise EntryError(f"zoo has no recipe for it: {problem}; {remedy}")

    def require_squares(self) -> None:
        """Check that images and patches have one size.

        Raises:
            CheckpointError: One has two sides that differ.
        """
        for key in ("image_size", "patch_size"):
            if not isinstance(self.config[key], int):
                problem = f"{key} is {self.config[key]}, expected one number"
                raise CheckpointError(f"zoo has no recipe for it: {problem}")

    def describe_text(self, length: int, task: str) -> tuple[dict[str, Any], TextSpec]:
        """Return the data and task sections of a language model, and the facts of its data."""
        assert self.vocabulary is not None
        if length < 1:
            raise CheckpointError(f"max_position_embeddings is {length}, so no text has a length")
        data = {
            "name": "python_docs",
            "tokens": "subword",
            "vocabulary": len(self.vocabulary),
            "length": min(length, 512),
            "batch_size": 4,
        }
        return {"data": data, "task": task}, TextSpec(length, self.vocabulary)

    def describe_images(
        self, channels: int, size: int, classes: int
    ) -> tuple[dict[str, Any], ImageSpec]:
        """Return the data and task sections of an image model, and the facts of its data."""
        labels = self.config.get("id2label") or {}
        names = [str(labels[key]) for key in sorted(labels, key=int)]
        data = {"name": "images", "path": "images", "size": size, "classes": classes}
        data |= {"channels": channels}
        names = names if len(names) == classes else []
        spec = ImageSpec(channels, size, size, classes, names=tuple(names))
        return {"data": data, "task": "classification"}, spec

    def fit_vocabulary(self, name: str) -> None:
        """Drop the rows of a table past the last token (padding rows added by the publisher)."""
        assert self.vocabulary is not None
        if name in self.pool.taken:
            self.pool.taken[name] = self.pool.taken[name][: len(self.vocabulary)]

    def read_key_bias(self, pattern: str) -> bool:
        """Return whether keys have a bias; drop biases that are all 0."""
        names = [name for name in self.pool.rest if re.fullmatch(pattern, name)]
        if any(bool(self.pool.rest[name].any()) for name in names):
            return True
        for name in names:
            del self.pool.rest[name]
        return False


def mlp_ratio(hidden: int, dim: int) -> float:
    """Return a ratio whose product with dim, rounded down, is the hidden size."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim


def split_qkv(pool: Pool) -> None:
    """Split joint projections to queries, keys and values into three."""
    for name in [name for name in pool.taken if ".attn.qkv." in name]:
        weight = pool.taken.pop(name)
        if len(weight) % 3:
            raise CheckpointError(f"{name} {list(weight.shape)} is not three projections in one")
        parts = weight.chunk(3)
        for letter, part in zip("qkv", parts, strict=True):
            pool.taken[name.replace("attn.qkv", f"attn.{letter}_proj")] = part
