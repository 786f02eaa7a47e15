"""Find registered members by name: `zoo/encodings/rope.py` is the encoding `rope`.

A file of a kind's folder that marks one class with `@register` is a member of that kind. A
collection of zoo's own is a file that marks several classes, each with its `name`. Plug-in packages
mirror the same folders (`my_zoo/encodings/mine.py`); they come from the entry point group
`zoo.plugins` or from `zoo --plugin`, never from a recipe. Listing names reads the text of the
files; only `find` imports one.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from zoo.errors import ConfigIssue, RecipeError, ZooError
from zoo.suggestions import nearest


@dataclass(frozen=True)
class MemberKind:
    """The folders of a kind, and zoo's own modules in them that register nothing.

    Support modules of a plug-in begin with an underscore, or lie in a folder of their own.
    A collection is a module of zoo that registers several small members, each under its `name`.
    """

    folders: tuple[str, ...]
    support: frozenset[str] = frozenset()
    collections: tuple[str, ...] = ()
    in_recipes: bool = True
    """Whether recipes name its members."""


KINDS: Mapping[str, MemberKind] = MappingProxyType(
    {
        "encodings": MemberKind(("encodings",)),
        "mixers": MemberKind(("mixers",)),
        "models": MemberKind(
            ("models",),
            frozenset({"transformer", "embedding", "layer_types", "generation", "dense_head"}),
            ("integrations/recipe_models",),
        ),
        "data": MemberKind(
            ("data", "data/synthetic"),
            frozenset(
                {
                    "base",
                    "baselines",
                    "spec",
                    "sampler",
                    "cache",
                    "class_counts",
                    "finite",
                    "vision",
                    "pictures",
                    "batches",
                    "mean_iou",
                    "padding",
                    "patch_rows",
                    "point_sets",
                    "random_crop",
                    "resize",
                }
            ),
        ),
        "tasks": MemberKind(
            ("tasks",), frozenset({"base", "metrics", "sharding", "target_weights"})
        ),
        "optim": MemberKind(("optim",), frozenset({"base", "optimizers"}), ("optim/optimizers",)),
        "schedules": MemberKind(("schedules",), collections=("optim/base",)),
        "metrics": MemberKind(("metrics",), collections=("tasks/metrics",)),
        "callbacks": MemberKind(("callbacks",), collections=("run/callbacks/progress",)),
        "loggers": MemberKind(("loggers",), collections=("run/loggers",)),
        "launchers": MemberKind(
            ("launch",),
            frozenset({"executor", "launch", "local", "slurm_executor"}),
            in_recipes=False,
        ),
        "executors": MemberKind(
            ("executors",), collections=("launch/local", "launch/slurm_executor"), in_recipes=False
        ),
    }
)
RECIPE_KINDS = tuple(kind for kind, about in KINDS.items() if about.in_recipes)
GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "input": "Added to the input",
        "rotation": "Rotations of queries and keys",
        "keys": "Keys of other tokens",
        "bias": "Biases of scores",
        "rows": "Rows of scores",
        "gates": "Gates of tokens",
        "nothing": "No positions",
        "": "Others",
    }
)
"""{what encodings change: heading of their list}"""
PLUGINS = "ZOO_PLUGINS"  # an environment variable, so that the processes of one run agree
INSTALLED: Mapping[str, str] = MappingProxyType(
    {
        point.value: f"entry point {point.name} of {point.dist.name if point.dist else 'a package'}"
        for point in importlib.metadata.entry_points(group="zoo.plugins")
    }
)
"""{package: who named it} when Python started."""
GIVEN = "plug-in"
"""Who named a package that the user gave."""

RECIPE_SUFFIX = ".yaml"
SUITES = "suites"
"""The folder of configs/ with suites of comparisons; other files there are parts of recipes."""

Class = TypeVar("Class", bound=type)

_imports_forbidden: ContextVar[bool] = ContextVar("imports_forbidden", default=False)


class NotImportedError(LookupError):
    """A module is needed in a block of `forbid_imports` that was not imported before."""


@contextmanager
def forbid_imports() -> Iterator[None]:
    """Within the block, import no file of a member, and so neither torch nor lightning."""
    token = _imports_forbidden.set(True)
    try:
        yield
    finally:
        _imports_forbidden.reset(token)


def are_imports_forbidden() -> bool:
    """Return whether this runs in a block of `forbid_imports`."""
    return _imports_forbidden.get()


def may_import(module: str) -> bool:
    """Return whether a module may be imported, or was imported already."""
    return module in sys.modules or not _imports_forbidden.get()


def import_module(module: str) -> ModuleType:
    """Import a module. Raises NotImportedError in a block of `forbid_imports`."""
    if not may_import(module):
        raise NotImportedError(f"{module} is not imported")
    return importlib.import_module(module)


def register(cls: Class) -> Class:
    """Mark the class that a file stands for, or one of several in a collection."""
    own = vars(cls).get("name")
    cls.name = own or cls.__module__.rpartition(".")[2]  # type: ignore[attr-defined]
    return cls


def roots() -> dict[str, Path]:
    """Return {import name: folder} of the packages that hold members, zoo first.

    Raises:
        RecipeError: A plug-in is no package, or cannot be found.
    """
    found = {"zoo": Path(__file__).parent}
    given = dict.fromkeys(filter(None, os.environ.get(PLUGINS, "").split(",")), GIVEN)
    for package, origin in {**INSTALLED, **given}.items():
        found[package] = _find_package(package, origin)
    return found


def _find_package(package: str, origin: str) -> Path:
    """Return the folder of a plug-in. Raises RecipeError, which says who named it."""
    remedy = f"install it, or put its folder on PYTHONPATH or in {os.getcwd()}"
    if origin != GIVEN:
        remedy = "install that package again, or uninstall it"
    try:
        # finds a package without running it, but runs the one that it is in
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    except (Exception, SystemExit) as error:
        problem = f"cannot be found, {_summarize(error)}"
        raise RecipeError(ConfigIssue(origin, package, problem, remedy)) from error
    if spec is None:
        raise RecipeError(ConfigIssue(origin, package, "no such package", remedy))
    folder = next(iter(spec.submodule_search_locations or ()), None)
    if folder is None:
        problem = f"a module, {spec.origin}, and no package"
        remedy = "name a folder with subfolders such as encodings/"
        raise RecipeError(ConfigIssue(origin, package, problem, remedy))
    return Path(folder)


def _summarize(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def recipe_files() -> dict[str, Path]:
    """Return {name: file} of every registered recipe.

    Raises:
        RecipeError: Several files have the same name.
    """
    found: dict[str, list[Path]] = {}
    for folder in list_folders("recipes"):
        for path in sorted(folder.glob(f"*{RECIPE_SUFFIX}")):
            found.setdefault(path.stem, []).append(path)
    issues = [
        describe_conflict(f"recipe {name}", paths)
        for name, paths in found.items()
        if len(paths) > 1
    ]
    if issues:
        raise RecipeError(*issues)
    return {name: paths[0] for name, paths in found.items()}


def find_recipe_file(name: str) -> Path | None:
    """Return the file of a registered recipe; None if there is none.

    Raises:
        RecipeError: Several files have this name.
    """
    folders = [folder.glob(f"*{RECIPE_SUFFIX}") for folder in list_folders("recipes")]
    paths = [path for files in folders for path in sorted(files) if path.stem == name]
    if len(paths) > 1:
        raise RecipeError(describe_conflict(f"recipe {name}", paths))
    return paths[0] if paths else None


def describe_conflict(subject: str, paths: Sequence[Path]) -> ConfigIssue:
    """Describe a name that several files have, such as one of zoo and one of a plug-in.

    Args:
        subject: The kind and the name.
        paths: The files, that of zoo first.
    """
    first, *others = paths
    problem = f"{subject} is in {first} too"
    return ConfigIssue(str(others[-1]), "", problem, "give one of them another name")


def list_folders(kind: str) -> Iterator[Path]:
    """Yield the folder `kind` of each package; in a checkout of zoo it is next to the package."""
    for package, root in roots().items():
        if (root / kind).is_dir():
            yield root / kind
        elif package == "zoo":
            yield root.parent / kind


@dataclass(frozen=True)
class Member:
    """A registered class as its file declares it, known without importing it."""

    name: str
    module: str
    path: Path
    class_name: str
    summary: str  # the first line of the docstring of the file, in a collection of the class
    group: str = ""  # of an encoding, a key of GROUPS

    @property
    def modified(self) -> int:
        """When its file was modified, in nanoseconds since 1970."""
        return self.path.stat().st_mtime_ns

    def load(self) -> Any:
        """Import the file and return its registered class.

        Raises:
            RecipeError: The file is of a plug-in, and its import fails.
            NotImportedError: It was not imported before, in a block of `forbid_imports`.
        """
        try:
            return getattr(import_module(self.module), self.class_name)
        except (ZooError, NotImportedError):
            raise
        except (Exception, SystemExit) as error:
            if self.module.startswith("zoo."):
                raise
            raise RecipeError(self._explain_import(error)) from error

    def _explain_import(self, error: BaseException) -> ConfigIssue:
        """Describe why the file cannot be imported, with the line of the plug-in that failed."""
        # the folder of the package, above that of the kind
        root = self.path.parents[len(self.module.split(".")) - 2]
        trace = extract_tb(error.__traceback__)
        frames = [one for one in trace if Path(one.filename).is_relative_to(root)]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else str(self.path)
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{error.filename}:{error.lineno}"
        remedy = "correct it, or leave the plug-in out"
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0]
        if missing and missing != self.module.partition(".")[0]:
            remedy = f"install {missing}, or leave the plug-in out"
        return ConfigIssue(where, "", f"cannot be imported, {_summarize(error)}", remedy)


def names(kind: str) -> tuple[str, ...]:
    """Return the registered names of a kind, sorted."""
    return tuple(sorted(members(kind)))


def summaries(kind: str) -> dict[str, str]:
    """Return {name: first line of its file's docstring}, read without importing anything."""
    found = members(kind)
    return {name: found[name].summary for name in sorted(found)}


def group_encodings() -> dict[str, list[str]]:
    """Return {group: names of its encodings}, in the order of GROUPS, without empty groups."""
    found = members("encodings")
    grouped = {one: [name for name in sorted(found) if found[name].group == one] for one in GROUPS}
    return {group: listed for group, listed in grouped.items() if listed}


def members(kind: str) -> dict[str, Member]:
    """Return {name: member} of a kind.

    Raises:
        RecipeError: Files that register nothing, several classes, under another name, or under one
            that another file has.
    """
    found = {member.name: member for member in _list_collected(kind)}
    issues: list[ConfigIssue] = []

    for module, path in _list_modules(kind):
        try:
            member = _read_member(kind, module, path)
            # nobody can tell from a recipe which of the two it means
            if found.setdefault(path.stem, member) is not member:
                paths = [found[path.stem].path, path]
                issues.append(describe_conflict(f"{path.stem} among {kind}", paths))
        except RecipeError as error:
            issues.extend(error.issues)

    if issues:
        raise RecipeError(*issues)
    return found


def find_member(kind: str, name: str) -> Member:
    """Return the member of a name, reading only its file.

    Raises:
        KeyError: No member has this name; the message ends with the nearest names.
        RecipeError: The file of this name registers nothing, several classes, or another name; or
            there are several such files.
    """
    collected = [member for member in _list_collected(kind) if member.name == name]
    # only the file of this name is parsed: a broken plug-in must not stop other members
    files = [one for one in _list_modules(kind, name) if one[1].stem == name]
    paths = [*(member.path for member in collected), *(path for _, path in files)]
    if len(paths) > 1:
        raise RecipeError(describe_conflict(f"{name} among {kind}", paths))
    if collected:
        return collected[0]
    if files:
        return _read_member(kind, *files[0])
    raise KeyError(f"no {kind} named {name!r}; {nearest(name, names(kind))}")


def find(kind: str, name: str) -> Any:
    """Import and return the class registered under `name`; raise as `find_member` does."""
    return find_member(kind, name).load()


@functools.cache
def _list_collected(kind: str) -> tuple[Member, ...]:
    """Return the members of zoo's collections of a kind."""
    found = []
    for collection in KINDS[kind].collections:
        path = Path(__file__).parent / f"{collection}.py"
        module = f"zoo.{collection.replace('/', '.')}"
        for node in parse_file(path, path.stat().st_mtime_ns).body:
            if not isinstance(node, ast.ClassDef):
                continue
            if "register" not in map(ast.unparse, node.decorator_list):
                continue
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            (name,) = [str(name) for _, name in _list_values_given(node, "name")]
            found.append(Member(name, module, path, node.name, summary))
    return tuple(found)


def _list_modules(kind: str, name: str | None = None) -> Iterator[tuple[str, Path]]:
    """Yield (module, path) of each file that must register a member, zoo's before plug-ins'.

    Args:
        kind: The kind.
        name: The name of the only member to look for, or None.
    """
    for package, root in roots().items():
        for folder in KINDS[kind].folders:
            prefix = f"{package}.{folder.replace('/', '.')}"
            # a model looks up many members, and a glob takes more than twice as long
            files = _list_names(root / folder)
            for file in sorted(files) if name is None else {f"{name}.py"}.intersection(files):
                stem, suffix = os.path.splitext(file)
                if suffix != ".py":
                    continue
                supports = stem.startswith("_")
                if package == "zoo":
                    supports = supports or stem in KINDS[kind].support
                if not supports:
                    yield f"{prefix}.{stem}", root / folder / file


def _list_names(folder: Path) -> list[str]:
    """Return the names of the files of a folder, none if there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read_member(kind: str, module: str, path: Path) -> Member:
    """Describe the member that a file registers. Raises RecipeError if it registers none."""
    try:
        modified = path.stat().st_mtime_ns
    except OSError:
        modified = 0  # reading the file fails too, and is explained there
    return _describe_member(kind, module, path, modified)


@functools.cache
def _describe_member(kind: str, module: str, path: Path, modified: int) -> Member:
    """Do the work of `_read_member` once for each time that a file was modified."""

    def refuse(problem: str, remedy: str, line: int | None = None) -> RecipeError:
        return RecipeError(
            ConfigIssue(f"{path}:{line}" if line else str(path), "", problem, remedy)
        )

    is_ours = module.startswith("zoo.")
    excuse = "declare it as support in registry.KINDS" if is_ours else "begin its name with _"

    try:
        tree = parse_file(path, modified)
    except SyntaxError as error:
        raise refuse(f"syntax error: {error.msg}", "", error.lineno) from None
    except (OSError, ValueError, RecursionError) as error:
        # a folder of this name, text that is not UTF-8
        raise refuse(f"cannot be read, {_summarize(error)}", "") from None

    marks = _list_register_names(tree)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    registered = []
    for node in classes:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in marks:
                remedy = "write only @register; the name of the file is the name"
                raise refuse("@register takes no arguments", remedy, decorator.lineno)
            # decided from the text: importing all files would take seconds, and run code of plug-
            # ins
            if ast.unparse(decorator) in marks:
                registered.append(node)

    if not registered:
        remedy = f"mark one of its classes with @register, or {excuse}"
        raise refuse(f"registers no class, in a folder of {kind}", remedy)
    if len(registered) > 1:
        problem = f"registers several classes: {', '.join(node.name for node in registered)}"
        raise refuse(problem, "give each class a file of its own", registered[1].lineno)
    for line, own in _list_values_given(registered[0], "name"):
        if own != path.stem:
            remedy = f"rename the file to {own}.py, or remove `name`"
            raise refuse(f"registers under another name, {own!r}", remedy, line)

    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    group = ""
    for line, value in _list_values_given(registered[0], "part") if kind == "encodings" else ():
        group = str(value)
        if group not in GROUPS:
            known = ", ".join(one for one in GROUPS if one)
            raise refuse(f"has the part {group!r}", f"write one of {known}, or leave it out", line)
    return Member(path.stem, module, path, registered[0].name, summary, group)


@functools.cache
def parse_file(path: Path, modified: int) -> ast.Module:
    """Parse a Python file once for each time that it was modified."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _list_register_names(tree: ast.Module) -> set[str]:
    """Return the ways a file may write `register`: imported, renamed, or through its module."""
    marks = {"zoo.registry.register"}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module, alias.name) == ("zoo.registry", "register"):
                    marks.add(alias.asname or alias.name)
                if (node.module, alias.name) == ("zoo", "registry"):
                    marks.add(f"{alias.asname or alias.name}.register")
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "zoo.registry" and alias.asname:
                    marks.add(f"{alias.asname}.register")
    return marks


def _list_values_given(node: ast.ClassDef, attribute: str) -> Iterator[tuple[int, object]]:
    """Yield line and value of each `attribute = "..."` in the body of a class."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if attribute in map(ast.unparse, targets) and isinstance(statement.value, ast.Constant):
            yield statement.lineno, statement.value.value
