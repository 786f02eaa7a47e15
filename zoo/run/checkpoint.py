"""Write, locate and read checkpoints. They are plain data and tensors, read with `weights_only`.

A checkpoint is sealed, so that any change to it is noticed: it is the zip archive that `torch.save`
writes, with the checksum of all its bytes as the archive's comment. It is one file, which other
programs read as they would without the seal. A training with sharded weights may write a folder in
its place; see `zoo/run/shard_files.py`.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import pickle
import random
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo import registry
from zoo.config import Recipe
from zoo.config.recipe import had_linear_attention, update_sections
from zoo.data.corpus.tokenizer import vocabulary_from_dict
from zoo.data.spec import (
    DataSpec,
    ImageSpec,
    PointSpec,
    SegmentationSpec,
    TextClassificationSpec,
    TextSpec,
    VideoSpec,
    list_kinds,
)
from zoo.errors import CheckpointError, ZooError
from zoo.options.validation import read_data
from zoo.packages import PackageError, explain_imports
from zoo.run import shard_files, shipped
from zoo.utils import (
    LATEST,
    WRITING,
    describe_absence,
    follow_latest,
    raise_if_out_of_memory,
    read_bytes,
    write_file,
)
from zoo.version import __version__
from zoo.weights import SAFETENSORS, find_repeated

SEAL_NAME = b"zoo sha256 "
SEAL_LENGTH = len(SEAL_NAME) + 64
# a zip archive ends with the length of its comment, two bytes, and the comment
NO_COMMENT = b"\0\0"
KINDS = (ImageSpec, VideoSpec, SegmentationSpec, TextSpec, TextClassificationSpec, PointSpec)
"""Kinds of samples that a checkpoint tells apart by their facts."""
KIND = "kind"
"""The entry of a checkpoint that names another kind, of a plug-in."""
REMOTE = "hf:/"
"""The start of addresses of the Hub; a Path makes one slash of two."""
LIVE = shard_files.LIVE
"""Where Lightning puts the weights under training; `state_dict` has their average."""
METADATA, CHECKSUM = "zoo", "zoo sha256"  # entries of the header of a safetensors file
SEAL_START = SEAL_LENGTH.to_bytes(2, "little") + SEAL_NAME
FORMER_WEIGHT = re.compile(r"(?<![^.])blocks\.(\d+)\.attn\.")
RENAMED_WEIGHTS = (0, 2)  # the first version whose weights have today's names


def build_metadata(recipe: Recipe, spec: DataSpec) -> dict[str, Any]:
    """Return the metadata of a file with weights, enough to load it without its run."""
    return {
        "version": __version__,
        "name": recipe.name,
        "recipe": recipe.plain(),
        "samples": _spec_to_plain(spec),
    }


def _spec_to_plain(spec: DataSpec) -> dict[str, Any]:
    """Return the facts of samples as plain data; an evaluation may have other data."""
    plain = spec.to_dict()
    return plain if type(spec) in KINDS else {KIND: type(spec).__name__, **plain}


def read_spec(content: Mapping[str, Any], path: Path) -> DataSpec:
    """Return the facts of samples that a checkpoint's content stores. Raises CheckpointError."""
    try:
        spec = _build_spec(content["zoo"]["samples"], content["zoo"].get("recipe", {}))
        spec.check()
        return spec
    except Exception as error:
        raise_if_out_of_memory(error)
        # the tokenizer library fails with exceptions of its own
        message = f"its description of the data cannot be read, {_summarise(error)}"
        raise CheckpointError(f"{path}: {message}; {_describe_others(path)}") from None


def _build_spec(stored: Mapping[str, Any], recipe: Mapping[str, Any]) -> DataSpec:
    if KIND in stored:
        return _build_plugged_in(stored, recipe)
    if "axes" in stored:
        lists = {key: tuple(stored[key]) for key in ("names", "target_means", "target_stds")}
        return PointSpec(**{**stored, **lists})
    if "vocabulary" not in stored:
        sizes = {**stored, "names": tuple(stored["names"])}
        if sizes.pop("masks", False):
            return SegmentationSpec(**sizes)
        return VideoSpec(**sizes) if "frames" in sizes else ImageSpec(**sizes)

    vocabulary = vocabulary_from_dict(stored["vocabulary"])
    # a tokenizer is read at its first use
    len(vocabulary)
    if "classes" in stored:
        names = tuple(stored["names"])
        return TextClassificationSpec(stored["length"], vocabulary, stored["classes"], names)
    return TextSpec(stored["length"], vocabulary, stored.get("targets", "every"))


def _build_plugged_in(stored: Mapping[str, Any], recipe: Mapping[str, Any]) -> DataSpec:
    """Build the spec of a plug-in, one of the kinds that the recipe's model reads."""
    model = registry.find("models", recipe["model"]["name"])
    for kind in list_kinds(model):
        if issubclass(kind, DataSpec) and kind.__name__ == stored[KIND]:
            return read_data(kind, {key: stored[key] for key in stored if key != KIND})
    raise ValueError(f"{stored[KIND]} is none of the data that model {model.name} reads")


def find_addressed(name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of an address: zoo:NAME, or hf://owner/name, which is downloaded.

    Returns:
        The folder; None if the name is a path. Nothing may be written into it.

    Raises:
        CheckpointError: There is nothing at the address.
        PackageError: huggingface_hub is missing, for a folder of the Hub.
    """
    if os.fspath(name).startswith(shipped.PREFIX):
        return shipped.find_folder(name)
    if os.fspath(name).startswith(REMOTE):
        # the only place that needs the library of the Hub
        from zoo.run.hub import fetch_folder

        return fetch_folder(name)
    return None


def name_results(name: str | os.PathLike[str]) -> str | None:
    """Return the folder for results on the model of an address, below runs; None for a path."""
    if os.fspath(name).startswith(shipped.PREFIX):
        return str(Path("runs", "zoo", os.fspath(name).removeprefix(shipped.PREFIX)))
    if os.fspath(name).startswith(REMOTE):
        from zoo.run.hub import name_results as name_hub_results

        return str(name_hub_results(name))
    return None


def is_read_only(path: Path) -> bool:
    """Return whether a file lies where nothing is written: in zoo itself, or a cache of the Hub."""
    return shipped.FOLDER in path.parents or _is_cached(path)


def _is_cached(path: Path) -> bool:
    return "snapshots" in path.parts and any(part.startswith("models--") for part in path.parts)


def locate(name: str | Path) -> Path:
    """Return the checkpoint file of a run directory, `RUN/last`, `RUN/best` or a file's name.

    Of a run directory it is the best checkpoint, else the last; of an exported folder
    `model.safetensors`. zoo:NAME is a model that zoo ships; a folder of the Hub, hf://owner/name,
    is downloaded. Raises CheckpointError.
    """
    if not str(name):
        raise CheckpointError("an empty name; name a run directory or a checkpoint")
    path = find_addressed(name) or Path(name)
    try:
        return _locate(follow_latest(path))
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read, {error.strerror or error}") from None


def _locate(path: Path) -> Path:
    if exists(path):
        return path
    if path.is_dir():
        # a run that was stopped before its first validation has only `last`
        for name in ("best", "last"):
            if exists(file := path / "checkpoints" / f"{name}.ckpt"):
                return file
        if (file := path / SAFETENSORS).is_file():
            return file
        message = "no checkpoint in it; a run directory holds checkpoints/best.ckpt and last.ckpt"
        raise CheckpointError(f"{path}: {message}")

    suggestion: Path | None = None
    absence = describe_absence(path, "checkpoint")
    if str(path) in registry.recipe_files() and not (Path("runs") / path).is_dir():
        raise CheckpointError(f"{path}: {absence}; it is a recipe: train it first")
    if follow_latest(newest := Path("runs") / path / LATEST).is_dir():
        raise CheckpointError(f"{path}: {absence}; did you mean {newest}?")
    if path.name in ("last", "best"):
        named = path.parent / "checkpoints" / f"{path.name}.ckpt"
        if exists(named):
            return named
        path = named
    if path.parent.is_dir():
        folders = [folder.name for folder in path.parent.iterdir() if folder.is_dir()]
        for close in difflib.get_close_matches(path.name, folders, n=1):
            suggestion = path.with_name(close)
    siblings = find_run_dir(path) / "checkpoints"
    hint = "name a run directory, such as runs/RECIPE/latest, or a checkpoint"
    if suggestion:
        hint = f"did you mean {suggestion}?"
    elif siblings.is_dir():
        hint = describe_checkpoints(siblings, path)
    raise CheckpointError(f"{path}: {describe_absence(path, 'checkpoint')}; {hint}")


def find_run_dir(checkpoint: Path) -> Path:
    """Return the run directory that a checkpoint file belongs to, else the file's folder."""
    # the folder, since a file of the Hub's cache is a link
    folder = checkpoint.parent.resolve()
    return folder.parent if folder.name == "checkpoints" else folder


def is_sharded(path: Path) -> bool:
    """Return whether a path is a checkpoint in a folder of shards."""
    return (path / shard_files.DIGESTS).is_file()


def exists(path: Path) -> bool:
    """Return whether a path is a file, or a folder of shards."""
    return path.is_file() or is_sharded(path)


def read_description(path: Path) -> dict[str, Any]:
    """Read a checkpoint's content; of a folder of shards without its weights.

    Raises:
        CheckpointError: As `read` raises it.
    """
    if not is_sharded(path):
        return read(path)
    content = shard_files.read_plain(path)
    require_checkpoint(content, path)
    return content


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint's content.

    Raises:
        CheckpointError: The file is corrupt, would run code, or is not a checkpoint of this
            version of zoo.
    """
    if is_sharded(path):
        content = shard_files.read_whole(path)
        require_checkpoint(content, path)
        return content
    stored = _read_file(path)
    try:
        if path.suffix == ".safetensors":
            weights, metadata = _parse_safetensors(stored, path)
            content = {"zoo": metadata, "state_dict": weights}
        else:
            content = load_plain(_unseal(stored, path))
    except (CheckpointError, PackageError):
        raise
    except Exception as error:
        raise_if_out_of_memory(error)
        # the file is as it was written, but not by zoo
        is_pickle = isinstance(error, pickle.UnpicklingError)
        if is_pickle and re.search("weights_only|Unsupported", str(error)):
            message = "unsafe, it holds more than plain data and tensors; none of it was run"
            raise CheckpointError(f"{path}: {message}") from None
        message = f"unreadable, {_summarise(error)}"
        raise CheckpointError(f"{path}: {message}; {_describe_others(path)}") from None

    require_checkpoint(content, path)
    if had_linear_attention(content["zoo"]["recipe"]):
        # version 0.3 named its weights as those of softmax attention
        for entry in {"state_dict", LIVE} & content.keys():
            content[entry] = {
                FORMER_WEIGHT.sub(r"blocks.\1.mixer.", name): weight
                for name, weight in content[entry].items()
            }
        content["zoo"]["recipe"] = update_sections(content["zoo"]["recipe"])
    return content


def load_plain(file: io.BytesIO) -> Any:
    """Return what `torch.save` wrote: plain data and tensors, of which no code is run.

    Raises:
        ValueError: It is compressed, which `torch.save` never does: it could become any size.
        Exception: As torch raises it.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed, which torch does not write")
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def require_checkpoint(content: Any, path: Path) -> None:
    """Check that content is a checkpoint of this version. Raises CheckpointError."""
    if message := _find_problem(content):
        raise CheckpointError(f"{path}: {message}; {_describe_others(path)}")


def _find_problem(content: Any) -> str:
    """Return what makes content other than a checkpoint of this version; empty if nothing does."""
    if not isinstance(content, dict) or not {"zoo", "state_dict"} <= content.keys():
        return "not a checkpoint of zoo, it carries no recipe"
    metadata, weights = content["zoo"], content["state_dict"]
    if not isinstance(metadata, dict):
        metadata = {}
    version = str(metadata.get("version"))
    # major and minor version decide; patches keep names
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers and numbers < RENAMED_WEIGHTS:
        return (
            f"written by zoo {version}; this is {__version__}, which renamed weights; no migration"
        )

    missing = ""
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        missing = "weights"
    if not isinstance(metadata.get("name"), str):
        missing = "name of its recipe"
    if not isinstance(metadata.get("recipe"), dict):
        missing = "recipe"
    if missing:
        return f"not as zoo writes it, it has no {missing}"
    # what zoo writes is dense: only strides can make a tensor larger than its file
    odd = {name: weight for name, weight in weights.items() if not _is_dense(weight)}
    repeated = find_repeated(odd) if odd else []
    return f"corrupt, {repeated[0]}" if repeated else ""


def _is_dense(weight: Tensor) -> bool:
    return weight.layout == torch.strided and not weight.is_quantized and weight.is_contiguous()


def _summarise(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _describe_others(path: Path) -> str:
    return describe_checkpoints(find_run_dir(path) / "checkpoints", path)


def serialise(content: Any) -> io.BytesIO:
    """Return plain data and tensors as the bytes of an unsealed file, copied at this moment."""
    file = io.BytesIO()
    torch.save(content, file)
    return file


def write_sealed(file: io.BytesIO, path: Path) -> None:
    """Seal what `serialise` returned and write it. Raises ZooError as `write` does."""
    seal = SEAL_START + hashlib.sha256(file.getbuffer()).hexdigest().encode()
    # the seal replaces the empty comment, so the digest covers everything before it
    file.seek(-len(NO_COMMENT), os.SEEK_END)
    file.write(seal)
    try:
        if path.is_dir():
            # a file does not replace a folder of shards by itself
            unfinished = path.with_name(f"{path.name}{WRITING}")
            write_file(file, unfinished)
            shard_files.replace_by(unfinished, path)
        else:
            write_file(file, path)
    except ZooError as error:
        raise ZooError(f"{error}{_mention_checkpoints(path, path.parent)}") from None


def write_safetensors(
    weights: Mapping[str, Tensor], metadata: Mapping[str, Any], path: Path
) -> None:
    """Write weights as safetensors; the header carries plain data and a checksum of everything.

    Raises:
        PackageError: safetensors is missing.
        ZooError: As `write` raises it.
    """
    with explain_imports():
        from safetensors.torch import save

    plain = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    # other programs look for the format
    content = save(plain, {"format": "pt", METADATA: json.dumps(metadata)})
    header, data = _split_header(content)
    # the library wrote the header without a checksum, which depends on the header: write it again
    header["__metadata__"][CHECKSUM] = _compute_checksum(header, data)
    table = json.dumps(header, separators=(",", ":")).encode()
    table += b" " * (-len(table) % 8)  # tensors are aligned
    file = io.BytesIO(len(table).to_bytes(8, "little") + table)
    file.seek(0, os.SEEK_END)
    file.write(data)
    write_file(file, path)


def _parse_safetensors(content: bytes, path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the weights of a file, and the plain data that `write_safetensors` was given.

    Raises:
        CheckpointError: The file is corrupt, or was not written by zoo.
    """
    with explain_imports():
        from safetensors.torch import load

    try:
        weights = load(content)
        header, data = _split_header(content)
        stored = header.get("__metadata__", {})
        metadata = json.loads(stored[METADATA]) if METADATA in stored else None
    except Exception as error:
        raise_if_out_of_memory(error)
        # the library's error class is not public
        raise CheckpointError(f"{path}: corrupt, {str(error)[:120]}") from None
    if metadata is None:
        message = "not written by zoo, it carries no recipe; zoo convert reads published weights"
        raise CheckpointError(f"{path}: {message}")
    if stored.get(CHECKSUM) != _compute_checksum(header, data):
        raise CheckpointError(f"{path}: corrupt, its checksum does not match")
    return weights, metadata


def _split_header(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split the bytes of a safetensors file into its table and the numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), memoryview(content)[start:]


def _compute_checksum(header: Mapping[str, Any], data: memoryview) -> str:
    """Return a checksum of names, shapes, plain data and numbers."""
    stored = {key: value for key, value in header["__metadata__"].items() if key != CHECKSUM}
    described = json.dumps({**header, "__metadata__": stored}, sort_keys=True)
    digest = hashlib.sha256(described.encode())
    digest.update(data)
    return digest.hexdigest()


def copy(path: Path, target: Path) -> None:
    """Copy a checkpoint. Raises as `read_sealed` and `write` do."""
    if is_sharded(path):
        shard_files.copy(path, target)
        return
    write_file(read_sealed(path), target)


def read_sealed(path: Path) -> io.BytesIO:
    """Return the bytes of a sealed file.

    Raises:
        CheckpointError: The file cannot be read, or a byte differs from what was written.
    """
    return _unseal(_read_file(path), path)


def _read_file(path: Path) -> bytes:
    """Return the bytes of a checkpoint. Raises CheckpointError."""
    try:
        return read_bytes(path)
    except OSError as error:
        alternatives = _mention_checkpoints(path, path.parent, path)
        raise CheckpointError(
            f"{path}: unreadable, {error.strerror or error}{alternatives}"
        ) from None


def _unseal(content: bytes, path: Path) -> io.BytesIO:
    """Return the bytes of a sealed file, once its seal is checked. Raises CheckpointError."""
    alternatives = _mention_checkpoints(path, path.parent, path)
    cut = max(0, len(content) - len(NO_COMMENT) - SEAL_LENGTH)
    payload, seal = memoryview(content)[:cut], content[cut:]
    if not seal.startswith(SEAL_START):
        message = "corrupt, or unsafe and not written by zoo: it does not end with its checksum"
        raise CheckpointError(f"{path}: {message}; nothing of it was used{alternatives}")
    digest = hashlib.sha256(payload)
    # the file had an empty comment when its digest was taken
    digest.update(NO_COMMENT)
    if seal != SEAL_START + digest.hexdigest().encode():
        raise CheckpointError(f"{path}: corrupt, its checksum does not match{alternatives}")
    return io.BytesIO(content)


def is_intact(path: Path) -> bool:
    """Return whether a checkpoint exists and no byte of it has changed."""
    try:
        if is_sharded(path):
            shard_files.verify(path)
        else:
            read_sealed(path)
    except CheckpointError:
        return False
    return True


def describe_checkpoints(folder: Path, exclude: Path | None = None) -> str:
    """List the checkpoints of a folder, for a message about another one."""
    if names := _list_checkpoints(folder, exclude):
        return f"still there: {', '.join(names)} in {folder}"
    return f"no {'other ' if exclude else ''}checkpoint there"


def _list_checkpoints(folder: Path, exclude: Path | None) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ckpt") if path != exclude)


def _mention_checkpoints(path: Path, folder: Path, exclude: Path | None = None) -> str:
    """Return `describe_checkpoints` as the end of a message; nothing where none are missed."""
    # for other files, such as replay.pt, a folder without checkpoints is nothing to mention
    if path.suffix != ".ckpt" and not _list_checkpoints(folder, exclude):
        return ""
    return f"; {describe_checkpoints(folder, exclude)}"


def remove_unfinished(run: Path) -> None:
    """Remove the unfinished files of a run that was killed."""
    for folder in (run, run / "checkpoints"):
        for path in folder.glob(f"*{WRITING}"):
            shard_files.remove(path)


def to_plain(value: Any) -> Any:
    """Return a batch as nested lists and mappings of tensors on the CPU."""
    if isinstance(value, Tensor):
        # cloned, since the next step may write into the same memory
        return value.detach().cpu().clone()
    # named tuples before tuples, so that names are kept
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {key: to_plain(child) for key, child in value.items()}
    return [to_plain(child) for child in value] if isinstance(value, tuple | list) else value


def get_random_state() -> dict[str, Any]:
    """Return the states of torch on all devices, of numpy and of Python, as plain data."""
    kind, keys, *position = np.random.get_state()
    version, internal, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        # tensors and lists, since `weights_only` refuses arrays
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *position],
        "python": [version, list(internal), spare],
    }


def seed_rank(seed: int, rank: int) -> None:
    """Give each process random numbers of its own; rank 0 draws what a lone process would."""
    if rank:
        # SeedSequence mixes its words: seed + rank would repeat the streams of other seeds
        torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]))


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `get_random_state` returned; of devices only if their number is the same."""
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, *position = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *position))
    version, internal, spare = state["python"]
    random.setstate((version, tuple(internal), spare))


class RandomStreams:
    """Named random streams on the CPU, which leave torch's own untouched.

    A stream's seed depends on its name and on the state of torch's generator when this was made.
    """

    def __init__(self) -> None:
        self.state = bytes(torch.get_rng_state().numpy())

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Draw from the stream of a name within the block."""
        # Python's hash of a string differs from process to process; SHA-256 does not
        seed = hashlib.sha256(self.state + name.encode()).digest()[:8]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(seed, "little", signed=True))
            yield
