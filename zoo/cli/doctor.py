"""`zoo doctor`: check the environment, and name the remedy of each problem."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from zoo.cli.commands import Command
from zoo.cli.terminal import print_text
from zoo.errors import ZooError
from zoo.packages import (
    EXTRAS,
    REQUIRED,
    TESTED_PYTHON,
    TESTED_TORCH,
    TRANSITIVE,
    explain,
    list_missing,
    name_module,
    suggest_extra,
    suggest_install,
)
from zoo.reporting.numbers import as_json
from zoo.reporting.tables import format_table
from zoo.suggestions import list_words
from zoo.version import __version__

EMBEDDED = ("torchvision",)
"""Packages that others import whenever they are installed, so that a broken one breaks zoo."""

State = Literal["ok", "absent", "broken"]


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    state: State
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command, which has none."""


def run(args: argparse.Namespace) -> None:
    """Print the report; fail if anything is broken that zoo cannot do without."""
    checks = [*check_environment()]
    if args.json:
        print(as_json({"checks": [asdict(check) for check in checks]}))
    else:
        rows = [[check.state, check.name, check.detail] for check in checks]
        print_text(format_table(rows, left={0, 1, 2}))

    broken = [check.name for check in checks if check.state == "broken"]
    if broken:
        raise ZooError(f"broken: {', '.join(broken)}")


def check_environment() -> Iterator[Check]:
    """Yield every check, imports of packages first: they find most faults."""
    yield Check("zoo", "ok", f"{__version__}, {Path(__file__).parent.parent}")
    python = describe_tested(platform.python_version(), TESTED_PYTHON)
    yield Check("python", "ok", f"{python}, {sys.executable}")
    yield Check("system", "ok", f"{platform.platform()}, {os.cpu_count()} CPUs")
    needed = (*REQUIRED, *TRANSITIVE)
    is_installed = {name: not list_missing([name]) for name in (*needed, *EMBEDDED)}

    for name in (*needed, *EMBEDDED):
        if is_installed[name]:
            yield check_package(name)
        elif name in needed:
            yield Check(name, "broken", f"not installed; {suggest_install()}")
    if is_installed["torch"]:
        yield from check_devices()
    yield check_cache()
    yield from check_extras()


def check_package(distribution: str) -> Check:
    """Import a package and return its version, or what is wrong with it."""
    try:
        importlib.import_module(name_module(distribution))
    # a package built for another torch fails with almost any exception
    except Exception as error:
        return Check(distribution, "broken", str(explain(error) or error))
    version = _read_version(distribution)
    if distribution == "torch":
        version = describe_tested(version, TESTED_TORCH)
    return Check(distribution, "ok", version)


def describe_tested(version: str, tested: Sequence[str]) -> str:
    """Return a version, and those that zoo was tested with unless it is one of them."""
    if ".".join(version.split(".")[:2]) in tested:
        return version
    return f"{version} (zoo was tested with {list_words(tested)})"


def check_devices() -> Iterator[Check]:
    """Yield the threads and accelerators that torch sees."""
    try:
        import torch
    except Exception:
        return  # reported as a package
    yield Check("threads", "ok", f"{torch.get_num_threads()} of torch")
    yield check_denormals()
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory / 2**30
        yield Check(
            f"cuda:{number}", "ok", f"{torch.cuda.get_device_name(number)}, {memory:.0f} GiB"
        )
    if not torch.cuda.device_count():
        reason = "this torch is built without it" if torch.version.cuda is None else "no device"
        yield Check("cuda", "absent", reason)
    if torch.backends.mps.is_available():
        yield Check("mps", "ok", "Apple GPU")


def check_denormals() -> Check:
    """Return whether commands can flush denormal numbers to zero on this processor."""
    from zoo.run.machine import can_flush_denormals

    if can_flush_denormals():
        return Check("denormals", "ok", "flushed to zero by the commands that compute")
    return Check("denormals", "absent", "this processor, or this torch, cannot flush them to zero")


def check_cache() -> Check:
    """Return size and place of the folder of cached data, and whether it can be written."""
    from zoo.data.cache import cache_folder
    from zoo.utils import check_writable

    hint = "set XDG_CACHE_HOME to a folder that can be written"
    try:
        folder = cache_folder()
        # the cache may not exist yet: its nearest existing parent decides
        existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        check_writable(existing)
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    except (OSError, RuntimeError) as error:
        return Check("cache", "broken", f"{error}; {hint}")
    return Check("cache", "ok", f"{folder}, {size / 2**20:.0f} MiB in {len(files)} files")


def check_extras() -> Iterator[Check]:
    """Yield which optional packages are there, and the command for those that are not."""
    for extra, distributions in EXTRAS.items():
        missing = list_missing(distributions)
        if not missing:
            versions = ", ".join(
                f"{distribution} {_read_version(distribution)}" for distribution in distributions
            )
            yield Check(f"[{extra}]", "ok", versions)
        else:
            names = ", ".join(missing)
            yield Check(f"[{extra}]", "absent", f"{names}: {suggest_extra(extra)}")


def _read_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


COMMAND = Command(
    summary="check the environment: versions, devices, packages, common problems and how to fix "
    "them",
    example="zoo doctor",
    add_arguments=add_arguments,
    run=run,
    prints_json=True,
)
