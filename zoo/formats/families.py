"""Families of published models of texts, and the recipe and the weights that each becomes.

The names are those of transformers. Its rotations turn channels t and t + K/2 where zoo turns 2t
and 2t + 1, so rows of projections change places.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.data.spec import DataSpec, ImageSpec, TextSpec, Vocabulary
from zoo.errors import CheckpointError
from zoo.formats import native
from zoo.formats.native import join_halves

Change = Callable[[Tensor], Tensor]


class Pool:
    """Published weights that are taken one by one.

    Attributes:
        missing: Names that were asked for and are not there.
        rest: Weights that nobody has taken.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.rest, self.missing = dict(weights), list[str]()
        self.taken: dict[str, Tensor] = {}

    def take(self, name: str, target: str, change: Change = lambda weight: weight) -> None:
        """Take a weight over as `target`, or note that it is missing."""
        if name not in self.rest:
            self.missing.append(name)
            return
        self.taken[target] = change(self.rest.pop(name))

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
                self.taken[name] = change(self.taken[name])

    def drop(self, pattern: str) -> list[str]:
        """Leave out weights that a model of zoo has no use for; return their names."""
        names = [name for name in self.rest if re.fullmatch(pattern, name)]
        for name in names:
            del self.rest[name]
        return names

    def has(self, pattern: str) -> bool:
        """Tell whether a weight is left whose name matches a pattern as a whole."""
        return any(re.fullmatch(pattern, name) for name in self.rest)

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a weight that tells sizes; raise CheckpointError without it."""
        if name not in self.rest:
            raise CheckpointError(f"missing: {name}")
        found = tuple(self.rest[name].shape)
        if len(found) != rank:
            problem = f"{name} has {len(found)} dimensions, not {rank}"
            raise CheckpointError(f"wrong number of dimensions: {problem}")
        return found


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

    def __init__(
        self, config: Mapping[str, Any], pool: Pool, vocabulary: Vocabulary | None
    ) -> None:
        self.config, self.pool, self.vocabulary = config, pool, vocabulary
        if self.prefix and not pool.has(f"{re.escape(self.prefix)}.*"):
            heads = ("lm_head.", "cls.", "classifier.")
            pool.rest = {
                name if name.startswith(heads) else self.prefix + name: weight
                for name, weight in pool.rest.items()
            }

    @abstractmethod
    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        """Return the sections model, data and task of a recipe, and what the model knows of data.

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

    def describe_text(self, length: int, task: str) -> tuple[dict[str, Any], TextSpec]:
        """Return data and task of a model of texts, and what it knows of them."""
        assert self.vocabulary is not None
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
        """Return data and task of a model of images, and what it knows of them."""
        labels = self.config.get("id2label") or {}
        names = [str(labels[key]) for key in sorted(labels, key=int)]
        data = {"name": "images", "path": "images", "size": size, "classes": classes}
        data |= {"channels": channels}
        names = names if len(names) == classes else []
        spec = ImageSpec(channels, size, size, classes, names=tuple(names))
        return {"data": data, "task": "classification"}, spec

    def fit_vocabulary(self, name: str) -> None:
        """Leave out rows of a table past the last token; they make its size a round number."""
        assert self.vocabulary is not None
        if name in self.pool.taken:
            self.pool.taken[name] = self.pool.taken[name][: len(self.vocabulary)]

    def read_key_bias(self, pattern: str) -> bool:
        """Tell whether keys have a bias; biases that are all 0 are left out."""
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


class LlamaFamily(PublishedFamily):
    """Llama, and Mistral, Qwen2 and Qwen3, which differ in window, biases and norms of heads."""

    prefix = "model."

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config, pool = self.config, self.pool
        dim, heads = config["hidden_size"], config["num_attention_heads"]
        self.require(hidden_act="silu", head_dim=dim // heads)
        self.tied = bool(config.get("tie_word_embeddings", False))
        if self.tied or not pool.has("lm_head.weight"):
            # the table, written twice
            self.tied = True
            pool.drop("lm_head.weight")
        attention = r"model\.layers\.\d+\.self_attn\."
        self.has_bias = pool.has(attention + r"[qvo]_proj\.bias")
        block = {
            "norm": "rms",
            "norm_eps": config.get("rms_norm_eps", 1e-6),
            "mlp": "swiglu",
            "mlp_ratio": mlp_ratio(config["intermediate_size"], dim),
            "mlp_bias": pool.has(r".*\.up_proj\.bias"),
            "proj_bias": self.has_bias,
            "key_bias": self.read_key_bias(attention + r"k_proj\.bias"),
        }
        self.has_norms = pool.has(attention + r"q_norm\.weight")
        if self.has_norms:
            block |= {"qk_norm": True, "qk_norm_eps": block["norm_eps"]}
        model = {
            "name": "decoder",
            "dim": dim,
            "depth": config["num_hidden_layers"],
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads"),
            "encoding": [self._describe_rope()],
            "block": block,
            "tie_embeddings": self.tied,
        }
        if config.get("sliding_window") and config.get("use_sliding_window", True):
            model["window"] = config["sliding_window"]
        sections, spec = self.describe_text(config["max_position_embeddings"], "causal_lm")
        return {"model": model, **sections}, spec

    def _describe_rope(self) -> dict[str, Any]:
        found = {**(self.config.get("rope_scaling") or {})}
        found |= self.config.get("rope_parameters") or {}
        base = found.get("rope_theta") or self.config.get("rope_theta", 10000.0)
        kind = found.get("rope_type", found.get("type", "default"))
        if kind == "default":
            return {"name": "rope", "base": base}
        is_llama3 = (found.get("low_freq_factor"), found.get("high_freq_factor")) == (1, 4)
        if kind != "linear" and not (kind == "llama3" and is_llama3):
            raise CheckpointError(f"zoo has no recipe for it: rope_type is {kind}")
        scaling = {"rule": kind, "factor": found["factor"]}
        if kind == "llama3":
            scaling["original"] = found["original_max_position_embeddings"]
        return {"name": "rope", "base": base, "scaling": scaling}

    def rename(self, heads: int) -> None:
        depth, pool = self.config["num_hidden_layers"], self.pool
        model = {own: other for own, other in native.LLAMA_MODEL.items() if own != "lm_head"}
        model |= {} if self.tied else {"lm_head": native.LLAMA_MODEL["lm_head"]}
        norms = {f"attn.{name}": f"self_attn.{name}" for name in ("q_norm", "k_norm")}
        block = {**native.LLAMA_BLOCK, **(norms if self.has_norms else {})}
        pool.take_layers(model, block, "model.layers.{}.", depth)
        pool.drop(r".*rotary_emb\.inv_freq")
        kv_heads = self.config.get("num_key_value_heads") or heads
        pool.change(r".*\.q_proj\..*", lambda weight: join_halves(weight, heads))
        pool.change(r".*\.k_proj\..*", lambda weight: join_halves(weight, kv_heads))
        pool.change(r".*\.[qk]_norm\..*", lambda weight: join_halves(weight, 1))
        if self.has_bias:
            for number in range(depth):
                for name in ("q_proj", "v_proj", "o_proj"):
                    key = f"blocks.{number}.attn.{name}"
                    if f"{key}.weight" in pool.taken:
                        zeros = torch.zeros(len(pool.taken[f"{key}.weight"]))
                        pool.taken.setdefault(f"{key}.bias", zeros)
        self.fit_vocabulary("embed_tokens.weight")
        self.fit_vocabulary("lm_head.weight")


class GPT2Family(PublishedFamily):
    """GPT-2, whose projections are transposed and hold queries, keys and values in one."""

    prefix = "transformer."

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config = self.config
        self.require(
            activation_function="gelu_new",
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
        )
        block = {
            "norm_eps": config.get("layer_norm_epsilon", 1e-5),
            "mlp": "gelu_tanh",
            "mlp_ratio": mlp_ratio(config.get("n_inner") or 4 * config["n_embd"], config["n_embd"]),
            "key_bias": True,
        }
        model = {
            "name": "decoder",
            "dim": config["n_embd"],
            "depth": config["n_layer"],
            "heads": config["n_head"],
            "encoding": ["learned"],
            "block": block,
        }
        sections, spec = self.describe_text(config["n_positions"], "causal_lm")
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool = self.pool
        pool.drop(r"lm_head\.weight|.*\.attn\.(masked_)?bias")
        model = {"embed_tokens": "transformer.wte", "norm": "transformer.ln_f"}
        block = {
            "norm1": "ln_1",
            "attn.qkv": "attn.c_attn",
            "attn.o_proj": "attn.c_proj",
            "norm2": "ln_2",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        }
        pool.take_layers(model, block, "transformer.h.{}.", self.config["n_layer"])
        pool.take("transformer.wpe.weight", "encoding.learned.table")
        pool.change(r"blocks\.\d+\.(attn|mlp)\..*\.weight", lambda weight: weight.mT)
        split_qkv(pool)
        self.fit_vocabulary("embed_tokens.weight")


def split_qkv(pool: Pool) -> None:
    """Divide projections to queries, keys and values in one into three."""
    for name in [name for name in pool.taken if ".attn.qkv." in name]:
        parts = pool.taken.pop(name).chunk(3)
        for letter, part in zip("qkv", parts, strict=True):
            pool.taken[name.replace("attn.qkv", f"attn.{letter}_proj")] = part


class BertFamily(PublishedFamily):
    """BERT: of its kinds of tokens the first, which is added to positions; without its heads."""

    prefix = "bert."
    dropped = r"cls\..*|classifier\..*|bert\.pooler\..*|bert\.embeddings\.position_ids"

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config = self.config
        self.require(hidden_act="gelu", position_embedding_type="absolute", is_decoder=False)
        dim = config["hidden_size"]
        block = {
            "norm_position": "post",
            "norm_eps": config.get("layer_norm_eps", 1e-12),
            "embed_norm": True,
            "mlp_ratio": mlp_ratio(config["intermediate_size"], dim),
            "key_bias": True,
        }
        model = {
            "name": "encoder",
            "dim": dim,
            "depth": config["num_hidden_layers"],
            "heads": config["num_attention_heads"],
            "encoding": ["learned"],
            "block": block,
        }
        sections, spec = self.describe_text(config["max_position_embeddings"], "masked_lm")
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool = self.pool
        model = {"embed_tokens": "bert.embeddings.word_embeddings"}
        model["embed_norm"] = "bert.embeddings.LayerNorm"
        block = {
            "attn.q_proj": "attention.self.query",
            "attn.k_proj": "attention.self.key",
            "attn.v_proj": "attention.self.value",
            "attn.o_proj": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "mlp.up_proj": "intermediate.dense",
            "mlp.down_proj": "output.dense",
            "norm2": "output.LayerNorm",
        }
        pool.take_layers(model, block, "bert.encoder.layer.{}.", self.config["num_hidden_layers"])
        kinds = "bert.embeddings.token_type_embeddings.weight"
        pool.take(kinds, "kinds")
        pool.take("bert.embeddings.position_embeddings.weight", "encoding.learned.table")
        first = pool.taken.pop("kinds", torch.zeros(1, 1))[0]
        pool.change(r"encoding\.learned\.table", lambda table: table + first)
        self.fit_vocabulary("embed_tokens.weight")
        mask = self._find_mask()
        pool.change(
            r"embed_tokens\.weight", lambda table: torch.cat([table, table[mask : mask + 1]])
        )

    def _find_mask(self) -> int:
        """Return the token whose row is that of the mask token: [MASK], else the last."""
        tokenizer = getattr(self.vocabulary, "tokenizer", None)
        found = None if tokenizer is None else tokenizer.token_to_id("[MASK]")
        assert self.vocabulary is not None
        return len(self.vocabulary) - 1 if found is None else int(found)
