"""Checkpoints that are there: where, and what is in them. Plain data and tensors, read with `weights_only` and nothing else."""

from __future__ import annotations

import difflib
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo import __version__
from zoo.config import Recipe
from zoo.data.corpus.tokenizer import from_plain
from zoo.data.spec import ImageSpec, Samples, TextClassificationSpec, TextSpec, VideoSpec
from zoo.errors import CheckpointError
from zoo.run.atomic_io import kept, verified
from zoo.run.run_dir import holder


def about(recipe: Recipe, samples: Samples) -> dict[str, Any]:
    """What every file with weights says of their origin, so that they can be loaded without anything else."""
    told = {"version": __version__, "name": recipe.name, "recipe": recipe.plain()}
    return {**told, "samples": remembered(samples)}


def remembered(samples: Samples) -> dict[str, Any]:
    """What a checkpoint keeps of the facts of its data, as plain data: an evaluation may have other data."""
    if isinstance(samples, ImageSpec):
        return {**asdict(samples), "names": [*samples.names]}
    plain: dict[str, Any] = {"length": samples.length, "vocabulary": samples.vocabulary.plain()}
    if isinstance(samples, TextSpec) and samples.asks != "every":
        plain["asks"] = samples.asks
    if isinstance(samples, TextClassificationSpec):
        plain |= {"classes": samples.classes, "names": [*samples.names]}
    return plain


def recalled(content: Mapping[str, Any], path: Path) -> Samples | None:
    """The facts that a checkpoint's contents keep, None of those of images before they were. Raises CheckpointError."""
    facts = content["zoo"].get("samples")
    if facts is None:
        return None
    try:
        if "vocabulary" not in facts:
            kind = VideoSpec if "frames" in facts else ImageSpec
            return kind(**{**facts, "names": tuple(facts["names"])})
        vocabulary = from_plain(facts["vocabulary"])
        len(vocabulary)  # a tokenizer is only read when it is asked something
        length = int(facts["length"])
        if "classes" in facts:
            return TextClassificationSpec(
                length, vocabulary, int(facts["classes"]), tuple(facts["names"])
            )
        before = (
            "answers" if facts.get("answers") else "every"
        )  # as it was told before there was `asks`
        return TextSpec(length, vocabulary, facts.get("asks", before))
    except Exception as error:  # the library of tokenizers fails in its own ways
        raise CheckpointError(
            f"{path}: what it says of its data cannot be read, {_brief(error)}; {_good(path)}"
        ) from None


def locate(place: str | Path) -> Path:
    """The checkpoint that a run directory (its best, else its last), `RUN/last`, `RUN/best` or a file names."""
    if not str(place):
        raise CheckpointError(
            "an empty name is no checkpoint; name a run directory or a checkpoint"
        )
    try:
        return _located(Path(place), str(place))
    except OSError as error:
        raise CheckpointError(
            f"{place}: cannot be looked into, {error.strerror or error}"
        ) from None


def _located(path: Path, told: str) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        for name in ("best", "last"):
            if (found := path / "checkpoints" / f"{name}.ckpt").is_file():
                return found
        raise CheckpointError(
            f"{told}: no checkpoint in it; a run directory holds checkpoints/best.ckpt and last.ckpt"
        )
    if (newest := Path("runs") / path / "latest").is_dir():
        raise CheckpointError(f"{path}: no such checkpoint; did you mean {newest}?")
    if path.name in ("last", "best"):
        named = path.parent / "checkpoints" / f"{path.name}.ckpt"
        if named.is_file():
            return named
        path = named
    folders = (
        [one.name for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
    )
    if close := difflib.get_close_matches(path.name, folders, n=1):
        raise CheckpointError(
            f"{path}: no such checkpoint; did you mean {path.with_name(close[0])}?"
        )
    raise CheckpointError(f"{path}: no such checkpoint; {_good(path)}")


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's contents. Raises CheckpointError where it is corrupt, would run code, or is none of zoo's."""
    try:
        content = torch.load(verified(path), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # it is as it was written, but not by zoo
        if isinstance(error, pickle.UnpicklingError) and re.search(
            "weights_only|Unsupported", str(error)
        ):
            told = "unsafe, it holds more than plain data and tensors; nothing of it was run"
            raise CheckpointError(f"{path}: {told}") from None
        raise CheckpointError(f"{path}: unreadable, {_brief(error)}; {_good(path)}") from None
    if not isinstance(content, dict) or not {"zoo", "state_dict"} <= content.keys():
        raise CheckpointError(
            f"{path}: not a checkpoint of zoo, it carries no recipe; {_good(path)}"
        )
    if strange := [*_strange(content["zoo"], content["state_dict"])]:
        raise CheckpointError(
            f"{path}: not as zoo writes it, it has no {strange[0]}; {_good(path)}"
        )
    return content


def _strange(about: Any, weights: Any) -> Iterator[str]:
    """What is not there, or is something else."""
    said = about if isinstance(about, dict) else {}
    if not isinstance(said.get("recipe"), dict):
        yield "recipe"
    if not isinstance(said.get("name"), str):
        yield "name of its recipe"
    if not isinstance(weights, dict) or not all(
        isinstance(weight, Tensor) for weight in weights.values()
    ):
        yield "weights"


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _good(path: Path) -> str:
    return kept(holder(path) / "checkpoints", path)
