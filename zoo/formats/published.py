"""Published weights, and the base class of the families of models that they belong to."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from zoo.data.corpus.tokenizer import TokenCount
from zoo.data.spec import DataSpec, ImageSpec, TextSpec, Vocabulary
from zoo.errors import CheckpointError
from zoo.formats.config_entries import EntryError
from zoo.weights import describe_fault

log = logging.getLogger("zoo")


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
        names: The file's own names of tensors, where they differ from those of transformers.
        folder: The folder, which transformers reads too; None for a file.
    """

    name: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    tokenizer: str | None = None
    origin: str = "config.json"
    fields: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def name_fields(self, problem: str) -> str:
        """Return a problem with the origin's own names of entries."""
        return re.sub(r"\w+", lambda word: self.fields.get(word[0], word[0]), problem)


TOKENIZER = "tokenizer.json"
EQUIP = "zoo.equip changes the encodings of such a model of transformers in place"
"""The way on for models that zoo's decoder cannot be."""


Change = Callable[[Tensor], Tensor]


class Pool:
    """Published weights that are taken one by one.

    Args:
        weights: The weights.
        names: The file's own names of weights, where they differ.

    Attributes:
        missing: Names that were asked for and are not there.
        faults: What is wrong with weights that were taken, each with its name.
        dropped: Names of weights that a model of zoo has no use for.
        rest: Weights that nobody has taken.
        taken: Weights by their names in zoo.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], names: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.rest, self.missing, self.faults = dict(weights), list[str](), list[str]()
        self.dropped: list[str] = []
        self.taken: dict[str, Tensor] = {}
        self._names, self._taken_names, self._prefix = dict(names), dict[str, str](), ""

    def name(self, name: str) -> str:
        """Return the file's own name of a weight, which may be missing."""
        return self._names.get(name, name.removeprefix(self._prefix))

    def name_taken(self, target: str) -> str:
        """Return the file's own name of a weight that was taken."""
        return self._taken_names.get(target, target)

    def rename(self, former: str, name: str) -> None:
        """Give a weight another name than the file does."""
        self._names[name] = self.name(former)
        self.rest[name] = self.rest.pop(former)

    def split_rest(self, name: str, parts: Mapping[str, Tensor]) -> None:
        """Replace a weight that nobody has taken by parts of it, by other names."""
        self._names |= dict.fromkeys(parts, self.name(name))
        del self.rest[name]
        self.rest |= parts

    def join_rest(self, name: str, parts: Sequence[str]) -> None:
        """Replace weights that nobody has taken by one that has the rows of all, by another name.

        A missing one is noted when `name` is taken.

        Raises:
            CheckpointError: Their rows do not have one shape.
        """
        self._names[name] = ", ".join(map(self.name, parts))
        if any(part not in self.rest for part in parts):
            return
        weights = [self.rest[part] for part in parts]
        if len({weight.shape[1:] for weight in weights}) > 1:
            shapes = ", ".join(str(list(weight.shape)) for weight in weights)
            raise CheckpointError(f"{self.name(name)}: rows of different shapes: {shapes}")
        self.rest[name] = torch.cat(weights)
        for part in parts:
            del self.rest[part]

    def add_prefix(self, prefix: str, others: tuple[str, ...]) -> None:
        """Add what the names of a file without a head lack, except to names that begin otherwise.

        Args:
            prefix: The start of the names.
            others: What other names begin with.
        """
        for name in [*self.rest]:
            if not name.startswith(others):
                self.rename(name, prefix + name)
        self._prefix = prefix

    def take(self, name: str, target: str, change: Change = lambda weight: weight) -> None:
        """Take a weight over as `target`, or note that it is missing."""
        if name not in self.rest:
            self.missing.append(self.name(name))
            return
        weight, self._taken_names[target] = self.rest.pop(name), self.name(name)
        if fault := describe_fault(weight):
            self.faults.append(f"{self.name(name)} {fault}")
            return
        self.taken[target] = self._change(self.name(name), weight, change)

    def split(self, name: str, parts: Mapping[str, Tensor]) -> None:
        """Replace a weight that was taken by parts of it, by their names in zoo."""
        del self.taken[name]
        self.taken |= parts
        self._taken_names |= dict.fromkeys(parts, self.name_taken(name))

    def take_layers(
        self,
        model: Mapping[str, str],
        blocks: Sequence[Mapping[str, str]],
        prefix: str,
        biased: Collection[str] | None = None,
    ) -> None:
        """Take the weights and biases of layers; see `rename_layers`.

        Args:
            model: Names in the file of layers of the model, by their names in zoo.
            blocks: For each block, names in the file of its layers, by their names in zoo.
            prefix: The start of the names of a block, such as "model.layers.{}.".
            biased: The layers that have a bias; None: those whose bias is there.
        """
        layers = [("", "", model)]
        layers += [(prefix.format(n), f"blocks.{n}.", block) for n, block in enumerate(blocks)]
        for other_start, own_start, names in layers:
            for name, published in names.items():
                source, target = other_start + published, own_start + name
                self.take(f"{source}.weight", f"{target}.weight")
                is_there = f"{source}.bias" in self.rest
                if is_there if biased is None else name in biased:
                    self.take(f"{source}.bias", f"{target}.bias")

    def change(self, pattern: str, change: Change) -> None:
        """Change all weights taken whose names match a pattern as a whole."""
        for name in self.taken:
            if re.fullmatch(pattern, name):
                self.taken[name] = self._change(self.name_taken(name), self.taken[name], change)

    def _change(self, name: str, weight: Tensor, change: Change) -> Tensor:
        try:
            return change(weight)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            cause = (str(error).splitlines() or [type(error).__name__])[0][:120]
            message = f"{name} {list(weight.shape)} does not have the shape of its configuration"
            raise CheckpointError(f"{message}: {cause}") from None

    def drop(self, pattern: str) -> None:
        """Drop weights that a model of zoo has no use for."""
        names = [name for name in self.rest if re.fullmatch(pattern, name)]
        for name in names:
            del self.rest[name]
        self.dropped += map(self.name, names)

    def has(self, pattern: str) -> bool:
        """Return whether the name of a remaining weight matches a pattern as a whole."""
        return any(re.fullmatch(pattern, name) for name in self.rest)

    def shape(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """Return the shape of a weight. Raises CheckpointError if there is none of that rank."""
        if name not in self.rest:
            raise CheckpointError(f"missing: {self.name(name)}")
        sizes = tuple(self.rest[name].shape)
        if rank not in (None, len(sizes)):
            reason = f"{self.name(name)} has {len(sizes)} dimensions, not {rank}"
            raise CheckpointError(f"wrong number of dimensions: {reason}")
        return sizes


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

    required: tuple[str, ...] = ()
    """Entries of the configuration that must be there."""

    table, head = "", "lm_head.weight"
    """The tensors of the embeddings of tokens and of the head."""

    ties = False
    """Whether the table predicts where `tie_word_embeddings` does not say."""

    auto = "AutoModelForCausalLM"
    """The class of transformers that computes the logits, or the states where there are none."""

    has_logits = True
    """Whether zoo computes the logits of the file, or only the states before a head."""

    def __init__(
        self, config: Mapping[str, Any], pool: Pool, vocabulary: Vocabulary | None
    ) -> None:
        self.config, self.pool, self.vocabulary = Configuration(config), pool, vocabulary
        # entries of the configuration that tensors decide, once `describe` has read them
        self.sizes: dict[str, int] = {}
        if self.prefix and not pool.has(f"{re.escape(self.prefix)}.*"):
            heads = ("lm_head.", "cls.", "classifier.")
            pool.add_prefix(self.prefix, heads)

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
        """Check entries of the configuration, where they are given; null stands for false.

        Raises:
            EntryError: With all entries that zoo has no recipe for.
        """
        wrong = [
            f"{key} is {self.config[key]}, expected {right}"
            for key, right in values.items()
            if self.config.get(key, right) != right and not (self.config[key] is None and not right)
        ]
        if wrong:
            raise EntryError("zoo has no recipe for it: " + "; ".join(wrong))

    def check_read(self) -> None:
        """Check that every entry of the configuration was read, after `describe`.

        Raises:
            CheckpointError: With all entries that nobody reads: they may change what is computed.
        """
        self.require(**EXPECTED)
        recognized = self.config.read | IGNORED | self.ignored
        unread = [
            f"{key}={value!r:.60}"
            for key, value in self.config.entries.items()
            if key not in recognized and value is not None
        ]
        if unread:
            hint = "delete what changes nothing of what the model computes"
            reason = f"{', '.join(sorted(unread))} is not read"
            raise EntryError(f"zoo has no recipe for it: {reason}; {hint}")

    def read_size(self, entry: str, name: str, axis: int, per: int = 1) -> int:
        """Return a size by a tensor that has it.

        Args:
            entry: The entry of the configuration about it, which may be missing.
            name: The tensor.
            axis: The axis of the tensor.
            per: The number of rows for each unit of the size, such as the channels of a head.

        Raises:
            CheckpointError: There is no such tensor, or the configuration states another size.
        """
        shape, stated = self.pool.shape(name), self.config.get(entry)
        name = self.pool.name(name)
        if axis >= len(shape):
            raise CheckpointError(f"wrong number of dimensions: {name} {list(shape)}")
        size, remainder = divmod(shape[axis], per)
        if remainder:
            message = f"{name} {list(shape)} cannot be cut into units of {per} for {entry}"
            raise EntryError(message)
        if stated not in (None, size):
            raise EntryError(f"{entry} is {stated!r:.20}, but {name} {list(shape)} has {size}")
        self.sizes[entry] = size
        return size

    def read_switch(self, entry: str, pattern: str, default: bool) -> bool:
        """Return whether the file has tensors that an entry of the configuration is about.

        Args:
            entry: The entry.
            pattern: The pattern of the names of such tensors.
            default: What a configuration without the entry means.

        Raises:
            EntryError: The configuration says otherwise.
        """
        stated = self.config.get(entry)
        names = [name for name in self.pool.rest if re.fullmatch(pattern, name)]
        if bool(names) == bool(default if stated is None else stated):
            return bool(names)
        tensor_name = self.pool.name(names[0]) if names else "no such tensor"
        shown = f"{entry} is {stated}" if stated is not None else f"no {entry} means {default}"
        right = "true" if names else "false"
        message = (
            f"{shown}, but the file has {tensor_name}; set {entry} to {right} if the file is right"
        )
        raise EntryError(message)

    def read_tied(self) -> bool:
        """Return whether the table predicts, by the tensors, as transformers loads them.

        A head of its own is used although `tie_word_embeddings` is true. One without the other
        stands for both.

        Raises:
            EntryError: There is no head, and `tie_word_embeddings` is false.
        """
        unread, stated = self.pool.rest, self.config.get("tie_word_embeddings")
        table_name, head_name = self.pool.name(self.table), self.pool.name(self.head)
        is_tied = self.ties if stated is None else bool(stated)
        table, head = unread.get(self.table), unread.get(self.head)
        if head is None:
            if not is_tied:
                shown = "false" if stated is not None else "not there, which means false"
                message = f"tie_word_embeddings is {shown}, but the file has no {head_name}"
                hint = f"set it to true if {table_name} predicts, or add the tensor"
                raise EntryError(f"{message}; {hint}")
            return True
        if not is_tied:
            return False
        if table is not None and not torch.equal(table, head):
            log.info(
                "%s differs from %s, and predicts; tied is only the flag", head_name, table_name
            )
            return False
        # the same numbers twice, or only under the name of the head
        self.pool.rename(self.head, self.table)
        return True

    def describe_text(self, length: int, task: str) -> tuple[dict[str, Any], TextSpec]:
        """Return the data and task sections of a language model, and the facts of its data.

        Without a tokenizer, the vocabulary is as large as the table of tokens.
        """
        rows, table = self.read_size("vocab_size", self.table, 0), self.pool.name(self.table)
        self.vocabulary = self.vocabulary or TokenCount(rows)
        count = len(self.vocabulary)
        if count > rows:
            message = f"{TOKENIZER} has {count} tokens, {table} {rows} rows"
            raise CheckpointError(message)
        if count < rows:
            log.info("left out: the last %d rows of %s, past %s", rows - count, table, TOKENIZER)
        data = {
            "name": "python_docs",
            "tokens": "subword",
            "vocabulary": count,
            "length": min(length, 512),
            "batch_size": 4,
        }
        return {"data": data, "task": task}, TextSpec(length, self.vocabulary)

    def describe_images(
        self, channels: int, size: int, classes: int
    ) -> tuple[dict[str, Any], ImageSpec]:
        """Return the data and task sections of an image model, and the facts of its data."""
        labels = self.config.get("id2label") or {}
        if wrong := [key for key in labels if not key.isdecimal()]:
            raise EntryError(f"id2label: expected numbers of classes, got {wrong[0]!r:.40}")
        names = [str(labels[key]) for key in sorted(labels, key=int)]
        if self.has_logits and names and len(names) != classes:
            raise EntryError(f"id2label has {len(names)} classes, but the file has {classes}")
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
        weight = pool.taken[name]
        if len(weight) % 3:
            reason = f"{list(weight.shape)} is not three projections in one"
            raise CheckpointError(f"{pool.name_taken(name)} {reason}")
        names = [name.replace("attn.qkv", f"attn.{letter}_proj") for letter in "qkv"]
        pool.split(name, dict(zip(names, weight.chunk(3), strict=True)))
