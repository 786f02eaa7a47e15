"""Names of what zoo is made of. A name is a file: `zoo/encodings/rope.py` is the encoding `rope`.

A file of a kind's folder that marks one class with `@register` is a member of that kind. Plug-in packages mirror the
same folders (`my_zoo/encodings/mine.py`); they come from the entry point group `zoo.plugins` or from `zoo --plugin`,
never from a recipe. Looking a name up imports its file; listing names and summaries only reads the text of the files.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from zoo.errors import Fault, RecipeError

KINDS = {
    "encodings": ("encodings",),
    "models": ("models",),
    "data": ("data", "data/synthetic"),
    "tasks": ("tasks",),
    "optim": ("optim",),
    "engines": ("launch",),
    "comparing": ("compare/executors",),
}
PLUGINS = "ZOO_PLUGINS"  # an environment variable, so that the processes of one run agree
INSTALLED = tuple(
    point.value for point in importlib.metadata.entry_points(group="zoo.plugins")
)  # when Python started

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Choice:
    """One `{name, options}` of a recipe: a member of a kind and the options it is made with."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choices:
    """Marks an option, as `Annotated[..., Choices(kind)]`, that a recipe fills with a list of members of `kind`."""

    kind: str


@dataclass(frozen=True)
class Between:
    """Bounds of an option, both included, as `Annotated[int, Between(1)]`: a recipe outside them is refused."""

    low: float
    high: float = float("inf")

    def __str__(self) -> str:
        return (
            f"at least {self.low}"
            if self.high == float("inf")
            else f"from {self.low} to {self.high}"
        )

    def past(self, value: float) -> str:
        """What a value that lies outside must be."""
        if self.high == COUNTED:
            return f"at least {self.low}" if value < self.low else f"at most {self.high}"
        return str(self)


COUNTED = 2**31 - 1  # as far as machines count one by one
Count = Annotated[int, Between(1, COUNTED)]


@dataclass(frozen=True)
class Matches:
    """What a text looks like: one of `patterns`. Any other is refused, as `problem` says, with a `remedy`."""

    patterns: tuple[re.Pattern[str], ...]
    problem: str
    remedy: str


def register(cls: Class) -> Class:
    """Mark the class that a file stands for."""
    cls.name = cls.__module__.rpartition(".")[2]  # type: ignore[attr-defined]
    return cls


def roots() -> dict[str, Path]:
    """Packages that hold members, zoo first: {import name: folder}."""
    found = {"zoo": Path(__file__).parent}
    for package in [*INSTALLED, *filter(None, os.environ.get(PLUGINS, "").split(","))]:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise RecipeError(
                Fault(
                    "plug-in",
                    package,
                    "no such package",
                    "install it, or put its folder on PYTHONPATH",
                )
            )
        found[package] = Path(next(iter(spec.submodule_search_locations)))
    return found


def _files(kind: str, only: str | None = None) -> Iterator[tuple[str, str, Path]]:
    """(name, module, path) of all members of a kind, or of those with one name: other files are then not read."""
    for package, folder in roots().items():
        for place in KINDS[kind]:
            for path in sorted((folder / place).glob("*.py")):
                if only in (None, path.stem) and "\n@register\n" in path.read_text(
                    encoding="utf-8"
                ):
                    yield path.stem, f"{package}.{place.replace('/', '.')}.{path.stem}", path


def names(kind: str) -> tuple[str, ...]:
    """Registered names of a kind, sorted."""
    return tuple(sorted({name for name, _, _ in _files(kind)}))


def summaries(kind: str) -> dict[str, str]:
    """{name: first line of its file's docstring}, read without importing anything."""
    found: dict[str, Path] = {}
    for name, _, path in _files(kind):
        found.setdefault(name, path)  # zoo's before those of plug-ins, as they are found
    return {name: _first_line(found[name]) for name in sorted(found)}


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def find(kind: str, name: str) -> Any:
    """The class registered under `name`. Raises KeyError with the nearest names in its message."""
    for _, module, _ in _files(kind, name):
        (cls,) = [
            c
            for c in vars(importlib.import_module(module)).values()
            if getattr(c, "__module__", "") == module and "name" in vars(c)
        ]
        return cls
    raise KeyError(f"no {kind} named {name!r}; {nearest(name, names(kind))}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that ends a message: the nearest known word, or the known words."""
    known = tuple(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}" if known else "there is none"
