"""Read the model of a folder, with its weights, or as a small random one of its architecture."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zoo.errors import ARGUMENT, CheckpointError, ConfigIssue, OptionError, RecipeError, escape_text

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The model and the laws of an audit."""

    size: Literal["small"] | None = None
    """small: the same architecture with few layers and random weights; null: the weights of the
    folder, or small if it has none."""

    laws: tuple[str, ...] | None = None
    """Names of laws to ask; null: all."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Dtype of the weights; null: that of the folder."""

    out: str | None = None
    """File for the report, which ends in .json, or in .html for a page; null: none."""

    model: str | None = None
    """Of a server, the name of the model; null: the only model that it has."""

    reference: str | None = None
    """Of a server, a folder of transformers with the weights that it should serve; null: none."""

    timeout: float | None = None
    """Of a server, seconds to wait for an answer; null: 60."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise OptionError("timeout", "must be larger than 0")


SIZES: Mapping[str, int] = {
    "vocab_size": 256,
    "vocab_size_per_layer_input": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "hidden_size_per_layer_input": 16,
}
"""{entry of a configuration: its largest value in a small model}"""
COUNTS = (
    "num_hidden_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
LARGEST = 5e8  # parameters of a model that is audited small
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def is_address(subject: object) -> bool:
    """Return whether a word is the address of a server."""
    return isinstance(subject, str) and subject.startswith(("http://", "https://"))


def is_run(subject: object) -> bool:
    """Return whether a path is that of a run or a checkpoint of zoo."""
    if not isinstance(subject, str | os.PathLike):
        return False
    path = Path(subject)
    if path.suffix == ".ckpt" or path.name in ("latest", "last", "best"):
        return True
    return (path / "recipe.yaml").is_file() or (path / "checkpoints").is_dir()


def load_reference(folder: str | Path) -> tuple[nn.Module, Any]:
    """Load the model of a folder with its tokenizer.

    Raises:
        RecipeError: There is no such folder, or no config.json in it.
        CheckpointError: It holds no model of transformers that loads, or no tokenizer.
    """
    from transformers import AutoTokenizer

    path = check_folder(folder)
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        raise CheckpointError("holds no weights", place=path)
    model = load_folder(path, AuditOptions())
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise _refuse(path, error) from None
    return model, tokenizer


def check_folder(folder: str | Path) -> Path:
    """Check that a folder may hold a model of transformers.

    Raises:
        RecipeError: There is no such folder, or no config.json in it.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        problem = "no config.json" if folder.is_dir() else "no such folder"
        remedy = "name a folder with a model of transformers"
        raise RecipeError(ConfigIssue(ARGUMENT, "", escape_text(f"{folder}: {problem}"), remedy))
    return folder


def load_folder(folder: str | Path, options: AuditOptions) -> nn.Module:
    """Load the model of a folder of transformers; nothing is downloaded, and no code of it is run.

    Args:
        folder: A folder with config.json.
        options: Its size and dtype.

    Raises:
        RecipeError: There is no such folder, or no config.json in it.
        CheckpointError: It holds no model of transformers, or weights that do not load.
    """
    import torch
    from transformers import AutoConfig

    folder = check_folder(folder)
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise _refuse(folder, error) from None
    dtype = getattr(torch, options.dtype) if options.dtype else None
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    if options.size == "small" or not has_weights:
        return build_small(config, dtype)
    model_class = find_model_class(config)
    try:
        model, loading = model_class.from_pretrained(
            folder, local_files_only=True, dtype=dtype or "auto", output_loading_info=True
        )
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise _refuse(folder, error) from None
    missing = sorted(loading["missing_keys"])
    if missing:
        problem = f"the weights lack {len(missing)} tensors, such as {missing[0]}"
        raise CheckpointError(escape_text(f"{folder}: {problem}"))
    return model.eval()


def _refuse(folder: Path, error: Exception) -> CheckpointError:
    cause = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
    return CheckpointError(escape_text(f"{folder}: holds no model that loads: {cause}"))


def find_model_class(config: Any) -> Any:
    """Return the automatic class for a configuration: with a head for text, or without a head."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    names = " ".join(getattr(config, "architectures", None) or [])
    if "ForMaskedLM" in names and type(config) in AutoModelForMaskedLM._model_mapping:
        return AutoModelForMaskedLM
    if "ForCausalLM" not in names and type(config) in AutoModelForMaskedLM._model_mapping:
        return AutoModelForMaskedLM
    if type(config) in AutoModelForCausalLM._model_mapping:
        return AutoModelForCausalLM
    return AutoModel


def build_small(config: Any, dtype: Any = None) -> nn.Module:
    """Build a small model of a configuration with random weights.

    Each kind of layer occurs twice; widths of heads, rotary entries and windows are kept.

    Args:
        config: A configuration of transformers.
        dtype: Dtype of its weights; float32 by default.

    Raises:
        OptionError: The class cannot be built so small.
    """
    # not before: folders are checked without torch
    from zoo.integrations.evaluating import stir

    try:
        small = shrink(config)
        model = build_random(find_model_class(small), small)
        stir(model)
        _widen(model)
    # Configurations and models of a library fail in many ways, with errors of its own classes.
    except Exception as error:
        lines = str(error).strip().splitlines()
        problem = f"{config.model_type} cannot be built small: "
        problem += lines[0][:160] if lines else type(error).__name__
        remedy = "pass the model with its weights to zoo.audit"
        raise OptionError("size", escape_text(f"{problem}; {remedy}")) from None
    if dtype is not None:
        for parameter in model.parameters():
            # Buffers keep the tables of angles, as loading with dtype= leaves them.
            parameter.data = parameter.data.to(dtype)
    return model.eval()


def build_random(model_class: Any, config: Any, largest: float = LARGEST) -> nn.Module:
    """Build a model with random weights in float32, the same ones each time.

    Args:
        model_class: An automatic class of transformers.
        config: Its configuration.
        largest: Number of parameters that it may have.

    Raises:
        OptionError: The class has no such model, or it is too large.
    """
    import torch

    if type(config) not in model_class._model_mapping:
        raise OptionError("", "it is a part of other models, and no model of tokens")
    _check_size(model_class, config, largest)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model: nn.Module = model_class.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # Some classes begin with products of zeros, which hide whatever precedes them.
            if parameter.dim() > 1 and not parameter.any():
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model.eval()


def _check_size(model_class: Any, config: Any, largest: float) -> None:
    """Check the number of parameters before any of them is allocated.

    Raises:
        OptionError: It is too large.
    """
    import torch

    try:
        with torch.device("meta"):
            model = model_class.from_config(config)
    # What reads numbers while it is built has none on this device; such classes are few and small.
    except Exception:
        return
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > largest:
        raise OptionError("", f"{count:,} parameters are left, most of them in parts without text")


def _widen(model: nn.Module) -> None:
    """Enlarge fresh matrices, which would make attention a mean over all tokens."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                spread = float(parameter.std().clamp(min=1e-9))
                parameter.mul_(min(fan_in**-0.5 * 1.5 / spread, 20.0))


def shrink(config: Any) -> Any:
    """Return a configuration with few layers and narrow states of its text part.

    Raises:
        ValueError: It has several text parts.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    for part in _list_parts(config):
        with _reading_layers(part):
            if part is text:
                _narrow(text)
                _cut_layers(text)
            elif part is not config:
                # Other parts read no tokens; their widths must fit those between them.
                _cut_layers(part, most=2)
    return config


def _list_parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and the configurations in it."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "model_type"):
            yield from _list_parts(part)


@contextmanager
def _reading_layers(config: Any) -> Iterator[None]:
    """Read entries that differ among layers as the value of the layers that have no other one."""
    if not getattr(config, "is_heterogeneous", False):
        yield
        return
    config.allow_global_per_layer_attribute_access = True
    yield
    config.allow_global_per_layer_attribute_access = False


def _narrow(text: Any) -> None:
    """Make the states of a configuration narrow, and heads few."""
    sizes = _choose_sizes(text)
    derived = _list_derived(text, sizes)
    for name, value in {**sizes, **derived}.items():
        setattr(text, name, value)
    for name in TOKENS:
        token = getattr(text, name, None)
        if isinstance(token, int) and token >= text.vocab_size:
            setattr(text, name, TOKENS.index(name))
        if isinstance(token, list):
            setattr(text, name, 2)
    if getattr(text, "is_heterogeneous", False):
        layers = text._heterogeneity_spec.per_layer_overrides
        text.per_layer_config = {
            layer: {name: _choose_size(text, name, value) for name, value in entries.items()}
            for layer, entries in layers.items()
        }


def _choose_size(text: Any, name: str, value: Any) -> Any:
    """Return the size of a layer that differs from others."""
    if name == "num_key_value_heads":
        return min(value, 4)
    return min(value, SIZES[name]) if name in SIZES and isinstance(value, int) else value


def _choose_sizes(text: Any) -> dict[str, Any]:
    """Return {entry: smaller value}."""
    sizes = dict(SIZES)
    heads = getattr(text, "num_attention_heads", None)
    width = getattr(text, "head_dim", None)
    hidden = getattr(text, "hidden_size", None)
    if isinstance(heads, int) and isinstance(hidden, int):
        if not isinstance(width, int):
            # An even number of channels turns, whatever fraction does.
            width = max(8, hidden // heads // 8 * 8)
            sizes["hidden_size"] = width * min(heads, 4)
        elif heads * width % hidden == 0:
            # Some classes need heads that fill the states.
            sizes["hidden_size"] = width * min(heads, 4) * hidden // (heads * width)
    groups = getattr(text, "num_key_value_heads", None)
    if isinstance(groups, int) and isinstance(heads, int):
        # All heads, some, or one have keys of their own.
        sizes["num_key_value_heads"] = min(heads, 4) if groups == heads else min(groups, 2)
    smaller: dict[str, Any] = {}
    for name, value in sizes.items():
        current = getattr(text, name, None)
        if type(current) is int and current > value:
            smaller[name] = value
        elif isinstance(current, list) and all(type(one) is int for one in current):
            # A size for each layer.
            smaller[name] = [min(one, value) for one in current]
    return smaller


def _list_derived(text: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that the class derives from sizes, where the configuration has those."""
    kind = type(text)
    try:
        plain, before, after = (
            kind(**entries).to_dict()
            for entries in ({}, {name: getattr(text, name) for name in sizes}, sizes)
        )
    # A class may refuse sizes that do not fit its defaults.
    except Exception:
        return {}
    return {
        name: value
        for name, value in after.items()
        if isinstance(value, int)
        and name not in sizes
        and value != plain.get(name)
        and getattr(text, name, None) == before.get(name)
    }


def _cut_layers(config: Any, most: int = 4) -> None:
    """Keep the first layers, until each kind occurs twice."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    for entry in COUNTS:
        count = getattr(config, entry, None)
        if not isinstance(count, int) or isinstance(getattr(type(config), entry, None), property):
            continue
        kept = min(count, most)
        if kinds and len(kinds) == count:
            kept = next(
                (
                    end
                    for end in range(1, count + 1)
                    if all(
                        list(kinds[:end]).count(kind) >= min(2, list(kinds).count(kind))
                        for kind in set(kinds)
                    )
                ),
                count,
            )
        for name, value in list(vars(config).items()):
            if not isinstance(value, list | tuple) or not value:
                continue
            if len(value) == count:
                # An entry for each layer.
                setattr(config, name, value[:kept])
            elif "layer" in name and all(type(one) is int and one < count for one in value):
                # Numbers of layers.
                setattr(config, name, [one for one in value if one < kept])
        if getattr(config, "is_heterogeneous", False):
            layers = config._heterogeneity_spec.per_layer_overrides
            config.per_layer_config = {
                layer: entries for layer, entries in layers.items() if layer < kept
            }
        setattr(config, entry, kept)
        shared = getattr(config, "num_kv_shared_layers", None)
        if isinstance(shared, int) and kinds:
            # The last layers read the keys of an earlier layer of their kind.
            first = max(list(kinds).index(kind) for kind in set(kinds[:kept]))
            config.num_kv_shared_layers = max(0, min(shared, kept - first - 1))
