"""Sharded checkpoints: folders to which each process writes its shards of weights and optimizer.

A folder is written by torch.distributed.checkpoint under another name and then renamed, so that it
is whole or not there. Its tensors are those of a checkpoint of one file, with flat names. All else
is in a file of plain data, and digests of all files are in another one.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from zoo.errors import CheckpointError
from zoo.utils import WRITING, write_json

PLAIN, DIGESTS = "plain.pt", "sha256.json"
WEIGHTS, LIVE, OPTIMIZERS = "state_dict", "current_model_state", "optimizer_states"
"""The entries of a checkpoint that are sharded: the weights that are evaluated, those under
training where they are others, and a list of the states of optimizers."""
SEPARATOR = "/"  # between the parts of the flat name of a tensor
BLOCK = 2**24  # bytes that are digested at once
ALLOWED = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.metadata": (
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}
"""What the description of a folder's tensors consists of, by module."""

Gather = Callable[[Any], list[Any]]
"""Returns the values of all processes, by rank."""


def write_shards(content: dict[str, Any], path: Path, rank: int, gather: Gather) -> None:
    """Write a checkpoint whose tensors are sharded. Every process must call it.

    Args:
        content: The content of the checkpoint, with the shards of this process.
        path: The folder; a checkpoint that is there is replaced.
        rank: The number of this process.
        gather: Exchanges values with the other processes.
    """
    unfinished = path.with_name(f"{path.name}{WRITING}")
    if rank == 0:
        remove(unfinished)
        unfinished.mkdir(parents=True)
    gather(None)
    tensors, plain = split_tensors(content)
    writer = ShardWriter(str(unfinished), single_file_per_rank=True)
    save(tensors, storage_writer=writer)
    own = {file.name: digest(file) for file in unfinished.glob(f"__{rank}_*")}
    digests = {name: value for part in gather(own) for name, value in part.items()}
    if rank == 0:
        torch.save(plain, unfinished / PLAIN)
        for file in (unfinished / PLAIN, unfinished / ".metadata"):
            digests[file.name] = digest(file)
        write_json(digests, unfinished / DIGESTS)
        replace_by(unfinished, path)
    gather(None)


def replace_by(unfinished: Path, path: Path) -> None:
    """Put a finished checkpoint in the place of another one; each is a folder or a file."""
    former = path.with_name(f"{path.name}.former{WRITING}")
    remove(former)
    if path.exists():
        path.rename(former)
    unfinished.rename(path)
    remove(former)


def copy(path: Path, target: Path) -> None:
    """Copy a sharded checkpoint, whose files are read to check them.

    Raises:
        CheckpointError: The folder is damaged.
    """
    verify(path)
    unfinished = target.with_name(f"{target.name}{WRITING}")
    remove(unfinished)
    shutil.copytree(path, unfinished)
    replace_by(unfinished, target)


def remove(path: Path) -> None:
    """Remove a checkpoint, of one file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def digest(file: Path) -> str:
    """Return the SHA-256 digest of a file."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def verify(path: Path) -> None:
    """Check that no byte of a sharded checkpoint has changed.

    Raises:
        CheckpointError: One has, or a file is missing.
    """
    try:
        digests = json.loads((path / DIGESTS).read_text(encoding="utf-8"))
        changed = [name for name, value in digests.items() if digest(path / name) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: a file of the folder is unreadable, {error}") from None
    if missing := [name for name in (PLAIN, ".metadata") if name not in digests]:
        raise CheckpointError(f"{path}: corrupt, {DIGESTS} has no checksum of {missing[0]}")
    if changed:
        message = f"corrupt, the checksum of {changed[0]} does not match"
        raise CheckpointError(f"{path}: {message}; nothing of it was used")


def read_plain(path: Path) -> dict[str, Any]:
    """Return the content of a sharded checkpoint without its tensors.

    Raises:
        CheckpointError: The folder is damaged.
    """
    verify(path)
    content: dict[str, Any] = torch.load(path / PLAIN, map_location="cpu", weights_only=True)
    return content


def read_whole(path: Path) -> dict[str, Any]:
    """Return the content of a sharded checkpoint as that of one file, assembled in memory.

    Raises:
        CheckpointError: The folder is damaged.
    """
    content = read_plain(path)
    reader = ShardReader(path)
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        # torch says that it reads in one process, which is meant
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader, no_dist=True)
    merge_tensors(content, tensors)
    if OPTIMIZERS in content:
        # shards name parameters, whose numbers differ between strategies; a file has numbers
        content[OPTIMIZERS] = [number_parameters(state) for state in content[OPTIMIZERS]]
    return content


def load_shards(path: Path, entries: Mapping[str, Any]) -> None:
    """Load the shards of this process into tensors. Every process must call it.

    Args:
        path: The folder.
        entries: Entries of the content with tensors, such as {"state_dict": {name: weight}}.
    """
    tensors, _ = split_tensors(entries)
    load(tensors, storage_reader=ShardReader(path))


def split_tensors(content: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split the content of a checkpoint into sharded tensors with flat names, and the rest."""
    # torch writes a flat mapping of tensors; everything else goes to a file beside it
    plain, tensors = dict(content), dict[str, Tensor]()
    for key in (WEIGHTS, LIVE):
        if key in content:
            plain[key] = _move_tensors(content[key], f"{key}{SEPARATOR}", tensors)
    if OPTIMIZERS in content:
        plain[OPTIMIZERS] = [
            _move_tensors(state, f"{OPTIMIZERS}{SEPARATOR}{number}{SEPARATOR}", tensors)
            for number, state in enumerate(content[OPTIMIZERS])
        ]
    return tensors, plain


def _move_tensors(
    values: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Move the tensors of nested mappings to one mapping, and return the rest."""
    rest: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            rest[key] = _move_tensors(value, f"{prefix}{key}{SEPARATOR}", tensors)
        else:
            rest[key] = value
    return rest


def merge_tensors(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Put tensors with flat names back where `split_tensors` found them."""
    for name, tensor in tensors.items():
        first, *parts, last = name.split(SEPARATOR)
        place: Any = content[first]
        for part in parts:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[last] = tensor


def number_parameters(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer by numbers of parameters, as torch's optimizers have it.

    Args:
        state: The state by names of parameters.
    """
    groups = state["param_groups"]
    names = [name for group in groups for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "state": {numbers[name]: values for name, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [numbers[name] for name in group["params"]]} for group in groups
        ],
    }


def name_parameters(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the state of an optimizer by names of parameters.

    Args:
        state: The state by numbers of parameters.
        names: The names of the parameters in the order of the optimizer's groups.
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    by_number = dict(zip(numbers, names, strict=True))
    return {
        "state": {by_number[number]: values for number, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [by_number[number] for number in group["params"]]}
            for group in state["param_groups"]
        ],
    }


class ShardWriter(FileSystemWriter):
    """A writer of shards whose description of tensors does not name the folder."""

    def storage_meta(self) -> StorageMeta:
        """Return the metadata of the folder: the identifier of the save alone."""
        return StorageMeta(save_id=self.save_id)


class ShardReader(FileSystemReader):
    """A reader of shards that runs no code of the folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._folder = path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the description of the tensors.

        Raises:
            CheckpointError: It names something else than tensors.
        """
        try:
            stored = (self._folder / ".metadata").read_bytes()
            metadata: Metadata = _MetadataUnpickler(io.BytesIO(stored)).load()
            entries = metadata.state_dict_metadata.values()
            if not all(isinstance(entry, TensorStorageMetadata) for entry in entries):
                raise pickle.UnpicklingError("it lists something that is no tensor")
        except (pickle.UnpicklingError, AttributeError, EOFError, OSError) as error:
            message = f"unsafe or damaged, {error}; none of it was run"
            raise CheckpointError(f"{self._folder}: {message}") from None
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")
