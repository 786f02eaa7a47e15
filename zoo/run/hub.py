"""Folders of the Hugging Face Hub, which are read like folders of this machine."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from zoo.errors import CheckpointError
from zoo.packages import explain_imports
from zoo.utils import raise_if_out_of_memory

# a Path makes one slash of two
ADDRESS = re.compile(
    r"hf:/{1,2}(?P<repository>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<folder>.+?))?/?"
)
FILES = ("*.safetensors", "*.json", "*.yaml", "*.md")
"""The files of a folder that are fetched: weights and text, nothing that Python would run."""
FORM = "hf://owner/name, hf://owner/name/folder or hf://owner/name@revision"


def fetch_folder(address: str | os.PathLike[str]) -> Path:
    """Download a folder of a model, unless the cache of huggingface_hub has it.

    Args:
        address: hf://owner/name, perhaps with @revision and a folder in it.

    Returns:
        The folder in the cache. Its path has the commit, so it never changes.

    Raises:
        CheckpointError: The address is none, or nothing can be fetched from it.
        PackageError: huggingface_hub is missing.
    """
    shown = re.sub("^hf:/+", "hf://", os.fspath(address))
    match = ADDRESS.fullmatch(shown)
    if match is None or ".." in Path(shown).parts:
        raise CheckpointError(f"{shown}: no address of the Hub; write {FORM}")
    with explain_imports():
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError

    place = match["folder"] or ""
    try:
        snapshot = huggingface_hub.snapshot_download(
            match["repository"],
            revision=match["revision"],
            allow_patterns=[f"{place}/{name}" if place else name for name in FILES],
        )
    except LocalEntryNotFoundError as error:
        # neither the network nor the cache has it
        problem = f"the Hub cannot be reached, {_shorten(error.__cause__ or error)}"
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            problem = "HF_HUB_OFFLINE forbids the network"
        command = _write_download(match["repository"], match["revision"], place)
        hint = f"where there is a network, `{command}` fetches it; copy it here and name its path"
        raise CheckpointError(f"{shown}: {problem}, and the cache lacks it; {hint}") from None
    except Exception as error:
        # of the library, or of what it downloads with
        raise_if_out_of_memory(error)
        cause = _shorten(error)
        hint = "is the name right, is there a network, and is it public or `hf auth login` done?"
        raise CheckpointError(f"{shown}: cannot be fetched, {cause}; {hint}") from None
    folder = Path(snapshot, place)
    if not folder.is_dir():
        raise CheckpointError(f"{shown}: there is no such folder in the repository")
    return folder


def _shorten(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _write_download(repository: str, revision: str | None, place: str) -> str:
    """Return the command that downloads a folder of a repository into the current folder."""
    words = ["hf", "download", repository]
    words += ["--revision", revision] if revision else []
    words += ["--include", f"{place}/*"] if place else []
    return shlex.join([*words, "--local-dir", repository.partition("/")[2]])


def name_results(address: str | os.PathLike[str]) -> Path:
    """Return the folder for results on a model of the Hub, whose own folder is a cache."""
    match = ADDRESS.fullmatch(os.fspath(address))
    assert match is not None
    return Path("runs", "hub", match["repository"], match["folder"] or "")
