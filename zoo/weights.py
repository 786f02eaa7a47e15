"""Weights that a file has: whether they are sound, and whether a model may be built for them.

A configuration is not trusted with sizes. What a model needs is compared with what the file has
before anything is allocated: the model is built on the meta device, and stopped where it needs
more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from zoo.errors import CheckpointError
from zoo.packages import explain_imports
from zoo.utils import escape_text

FREE_NUMBERS = 2**26
"""Numbers that a model may have and a file need not: tables of positions, a new head."""
FREE_SIZE = 2**20
"""Sizes below are no danger, whatever the file has."""
MODULES_PER_TENSOR = 20
LAYER_COUNTS = ("depth", "num_hidden_layers", "num_layers", "n_layer", "n_layers")
LENGTHS = re.compile(r"position|length|token|window|theta|base|seed|n_ctx|context|max_distance")
"""Keys that may be larger than any tensor; what they allocate is counted where it is."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SAFETENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""The names under which transformers looks for weights in a folder, in this order."""
MAX_LISTED = 20
"""Issues of one kind that a message lists."""


def describe_fault(weight: Tensor) -> str:
    """Return what makes a tensor no weight: its form, its type or its numbers; empty if sound."""
    form = _describe_form(weight)
    if form or not weight.numel():
        return form
    if weight.dtype not in FLOATS:
        return f"is {str(weight.dtype).removeprefix('torch.')}, not floating point"
    finite = torch.isfinite(weight)
    if not finite.all():
        count = weight.numel() - int(finite.sum())
        return f"has {count:,} of {weight.numel():,} numbers that are NaN or infinite"
    return ""


def _describe_form(weight: Tensor) -> str:
    if weight.layout != torch.strided or weight.is_quantized or weight.device.type != "cpu":
        return "is no plain tensor of numbers"
    # a file of some bytes can state a tensor of any size that repeats them
    if weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
        return f"{list(weight.shape)} repeats fewer numbers than its shape has"
    return ""


def find_repeated(weights: Mapping[str, Tensor]) -> list[str]:
    """Return an issue for each tensor that is larger than the numbers that a file has for it."""
    return [f"{name} {form}" for name, one in weights.items() if (form := _describe_form(one))]


def count_numbers(weights: Mapping[str, Tensor]) -> int:
    """Return how many numbers weights have; those that share memory count once."""
    sizes: dict[int | str, int] = {}
    for name, one in weights.items():
        storage = one.untyped_storage()
        # tensors without memory stand for others, whose shapes alone were read
        key = name if one.is_meta else storage.data_ptr()
        sizes[key] = storage.nbytes() // one.element_size()
    return sum(sizes.values())


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold the weights of a folder, as transformers finds them.

    Attributes:
        folder: The folder.
        files: The files of safetensors: one, or the shards that an index names.
        index: The file of each tensor by the index; empty without an index.
    """

    folder: Path
    files: tuple[Path, ...]
    index: Mapping[str, Path] = field(default_factory=dict)

    def list_others(self) -> list[str]:
        """Return the names of files of safetensors in the folder that hold none of the weights."""
        used = {file.name for file in self.files}
        return sorted(
            file.name for file in self.folder.glob("*.safetensors") if file.name not in used
        )

    def check_names(self, names: Mapping[Path, Sequence[str]]) -> None:
        """Check that each tensor is in one file, which is the one that the index names.

        Args:
            names: The names of the tensors in each file.

        Raises:
            CheckpointError: With every tensor that is in two files, or not where the index says.
        """
        places: dict[str, Path] = {}
        issues: list[str] = []
        for file, held in names.items():
            for name in held:
                if name in places:
                    issues.append(f"{name} is in {places[name].name} and in {file.name}")
                places[name] = file
        for name, file in self.index.items():
            if name not in names[file]:
                issues.append(f"{name} is not in {file.name}, where {INDEX} places it")
        raise_issues(self.folder, "its files do not hold one set of weights", issues)


def raise_issues(source: Path, problem: str, issues: Sequence[str]) -> None:
    """Raise CheckpointError with the first issues and the number of others, if there are any."""
    rest = len(issues) - MAX_LISTED
    more = [f"and {rest} more"] if rest > 0 else []
    if issues:
        lines = [f"{source}: {problem}", *issues[:MAX_LISTED], *more]
        raise CheckpointError("\n  ".join(map(escape_text, lines)))


def find_weights(folder: Path) -> WeightFiles | None:
    """Find the weights of a folder: model.safetensors, else the shards that its index names.

    Files under other names are not read, as transformers does not read them: older weights, states
    of optimizers, shards of another revision.

    Returns:
        The files; None if the folder has neither.

    Raises:
        CheckpointError: The index is damaged, or a file that it names is missing.
    """
    if (single := folder / SAFETENSORS).is_file():
        return WeightFiles(folder, (single,))
    if not (index := folder / INDEX).is_file():
        return None
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        named = {str(name): folder / str(file) for name, file in places.items()}
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{index}: not an index of weights: {error!r:.120}") from None
    files = tuple(sorted({*named.values()}))
    # an index of somebody else must not read files of other folders
    outside = [
        str(file) for file in files if file.parent != folder or file.suffix != ".safetensors"
    ]
    raise_issues(index, "names files that are not safetensors of its folder", outside)
    absent = [f"missing: {file.name}" for file in files if not file.is_file()]
    raise_issues(folder, f"not all files that {INDEX} names are there", absent)
    if not files:
        raise CheckpointError(f"{index}: names no file")
    return WeightFiles(folder, files, named)


def read_shapes(folder: Path) -> dict[str, Tensor]:
    """Return tensors without memory of the shapes of a folder's weights, by name.

    Returns:
        The tensors; none where the folder has no safetensors that transformers would read.

    Raises:
        CheckpointError: A file is damaged.
        PackageError: safetensors is missing.
    """
    with explain_imports():
        from safetensors import safe_open

    found = find_weights(folder)
    shapes: dict[str, Tensor] = {}
    for file in found.files if found else ():
        try:
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118
                    shape = content.get_slice(name).get_shape()
                    shapes[name] = torch.empty(shape, device="meta")
        except Exception as error:
            # its error class is not public
            raise CheckpointError(f"{file}: unreadable: {str(error)[:120]}") from None
    return shapes


def check_sizes(options: Any, weights: Mapping[str, Tensor], origin: str | Path) -> None:
    """Check the sizes that a configuration states against the weights of its file.

    Args:
        options: Mappings, lists and dataclasses of options.
        weights: The weights.
        origin: The file that has the configuration, for messages.

    Raises:
        CheckpointError: There are more layers than tensors, or a size exceeds all numbers.
    """
    held = count_numbers(weights)
    for key, value in _list_integers(options, ""):
        leaf = key.rpartition(".")[2]
        if leaf in LAYER_COUNTS and value > len(weights):
            problem = f"{key} is {value:,}, but the file has {len(weights):,} tensors"
        elif value > max(held, FREE_SIZE) and not LENGTHS.search(key):
            problem = f"{key} is {value:,}, but the file has {held:,} numbers"
        else:
            continue
        raise CheckpointError(f"{origin}: {problem}")


def _list_integers(options: Any, key: str) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers in options, each with its full key."""
    if isinstance(options, int) and not isinstance(options, bool):
        yield key, options
    parts: Sequence[tuple[Any, Any]] = ()
    if isinstance(options, Mapping):
        parts = [*options.items()]
    elif is_dataclass(options):
        parts = [(field.name, getattr(options, field.name)) for field in fields(options)]
    elif isinstance(options, list | tuple):
        parts = [*enumerate(options)]
    for name, value in parts:
        yield from _list_integers(value, f"{key}.{name}" if key else str(name))


@contextmanager
def limit_model(weights: Mapping[str, Tensor], origin: str | Path) -> Iterator[None]:
    """Stop the construction of a model in this block where it needs more than weights have.

    The block builds on the meta device, where tensors have no memory.

    Args:
        weights: The weights of its file.
        origin: The file that has the configuration, for messages.

    Raises:
        CheckpointError: The model has more numbers, or far more modules, than the file has weights.
    """
    held = count_numbers(weights)
    counts = {"numbers": 0, "modules": 0}

    def count(kind: str, number: int, limit: int) -> None:
        counts[kind] += number
        if counts[kind] > limit:
            problem = f"its model has more than {limit:,} {kind}, its weights {held:,} numbers"
            raise CheckpointError(f"{origin}: {problem} in {len(weights):,} tensors")

    def count_tensor(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            count("numbers", tensor.numel(), 2 * held + FREE_NUMBERS)

    def count_module(module: nn.Module, name: str, part: nn.Module | None) -> None:
        count("modules", 1, MODULES_PER_TENSOR * len(weights) + FREE_SIZE // 100)

    # these hooks see the modules of the whole process, so they are removed in any case
    registered: list[Callable[[], None]] = [
        hooks.register_module_parameter_registration_hook(count_tensor).remove,
        hooks.register_module_buffer_registration_hook(count_tensor).remove,
        hooks.register_module_module_registration_hook(count_module).remove,
    ]
    try:
        yield
    finally:
        for remove in registered:
            remove()
