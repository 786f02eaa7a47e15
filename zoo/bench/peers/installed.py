"""The libraries that are compared with, as far as they are here."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection
from importlib import metadata

from zoo.bench.peers import timm, x_transformers
from zoo.bench.protocol import Contender, Shape

log = logging.getLogger("zoo")


def build_peers(shape: Shape, rivals: Collection[str]) -> list[Contender]:
    """Models of all libraries that have a counterpart of these sizes to one of zoo's `rivals`."""
    found: list[Contender] = []
    for peer in (x_transformers, timm):
        if not {one.rival for one in peer.contenders(shape, None)} & {*rivals}:
            continue
        try:
            library = importlib.import_module(peer.MODULE)
        except Exception as error:  # one that is broken raises anything
            log.info("%s", _lacking(peer.NAME, peer.MODULE, error))
            continue
        found += [one for one in peer.contenders(shape, library) if one.rival in rivals]
    return found


def read_versions(contenders: Collection[Contender]) -> dict[str, str]:
    """{library: version} of those that take part."""
    return {name: _version(name) for name in sorted({one.peer for one in contenders if one.peer})}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _lacking(name: str, module: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return f"{name} is not installed and not compared with: pip install {name}"
    return f"{name} cannot be imported and is not compared with: {error}"
