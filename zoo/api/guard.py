"""Check the arguments of each function of `zoo.api`, and restore the process after the call.

Random states, threads, warnings, logging and environment are after a call what they were before.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import logging
import os
import reprlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType, NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

from zoo.config.recipe import Recipe, list_keys
from zoo.errors import (
    ARGUMENT,
    ConfigIssue,
    Message,
    OptionError,
    RecipeError,
    Setting,
    Stopped,
    ZooError,
)
from zoo.packages import explain_imports
from zoo.suggestions import SYNONYM, TYPO, find_meant, nearest
from zoo.utils import EscapingFormatter, explain_memory

if TYPE_CHECKING:
    from zoo.config import Overrides
    from zoo.data.base import Datasets
    from zoo.data.spec import DataSpec

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("zoo")


@runtime_checkable
class Model(Protocol):
    """A model, recognized by its methods, so that torch need not be imported."""

    def named_parameters(self) -> Any: ...


NOUNS: Mapping[type, str] = MappingProxyType(
    {
        str: "a string",
        bool: "True or False",
        NoneType: "None",
        Path: "a path",
        os.PathLike: "a path",
    }
)
"""Types of arguments in messages. Other classes that are checked read as their names."""
STAND_INS: Mapping[str, Any] = MappingProxyType({"nn": SimpleNamespace(Module=Model), "os": os})
"""Names of annotations that the modules of `zoo.api` import for type checkers only."""
SMALLER: Mapping[str, tuple[str | Setting, ...]] = MappingProxyType(
    {
        "evaluate": ("smaller batches, with ", Setting("data.batch_size"), ", take less"),
        "predict": ("smaller batches, with ", Setting("data.batch_size"), ", take less"),
        "generate": ("a shorter prompt, or fewer ", Setting("tokens"), ", take less"),
        "diagnose": (
            *("fewer ", Setting("samples"), ", ", Setting("queries"), " or ", Setting("layers")),
            *(", or a smaller ", Setting("data.batch_size"), ", take less"),
        ),
        "atlas": (
            *("fewer ", Setting("samples"), " or ", Setting("queries"), ", or a shorter "),
            *(Setting("length"), ", take less"),
        ),
        "bench": (
            "a smaller ",
            Setting("batch"),
            ", or shorter ",
            Setting("lengths"),
            ", take less",
        ),
        "compare": ("fewer cells at the same time, with ", Setting("jobs"), ", take less"),
    }
)
"""{function: what takes less memory, as parts of a message}"""
LOCK = threading.RLock()
"""Commands change the state of the process while they run, so only one runs at a time."""
LIGHTNING_LOGS = ("lightning", "lightning.pytorch", "lightning.fabric")


def guard(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse unknown keyword arguments of a function, and leave the process as it was.

    Python itself answers an unknown keyword with a TypeError that suggests nothing.

    Args:
        function: If it has an argument `verbose`, that is the one of `isolate_process`.

    Returns:
        The function with the same signature. It raises RecipeError for an unknown keyword.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    # options of a dataclass, which refuses those that it does not have
    takes_options = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    default = parameters["verbose"].default if "verbose" in parameters else True

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not takes_options:
            refuse_unknown(kwargs, parameters)
        check_types(function, args, kwargs)
        with (
            isolate_process(kwargs.get("verbose", default)),  # type: ignore[arg-type]
            suggest_smaller(function.__name__),
        ):
            return function(*args, **kwargs)

    return call


def suggest_smaller(function: str) -> AbstractContextManager[None]:
    """Within the block, name what takes less memory where there is too little.

    Args:
        function: The function of `zoo.api` that does the work.
    """
    return explain_memory(functools.partial(Message, *SMALLER.get(function, ())))


def log_problem(problem: ZooError | None, verbose: bool | None) -> None:
    """Log why a result is not complete, where no command line prints it."""
    if problem is not None and verbose is not None:
        level = logging.INFO if isinstance(problem, Stopped) else logging.ERROR
        log.log(level, "%s", problem)


def refuse_unknown(keywords: Iterable[str], parameters: Iterable[str]) -> None:
    """Raise RecipeError for the keywords that a function does not have, with the nearest it has."""
    parameters = [*parameters]
    issues = []
    for key in (keyword for keyword in keywords if keyword not in parameters):
        hint = nearest(key, parameters)
        if "overrides" in parameters and not find_meant(key, parameters, TYPO):
            keys = list_keys()
            for full in [key] if key in keys else find_meant(key, keys, SYNONYM)[:1]:
                hint = f'it is a key of the recipe: write overrides={{"{full}": ...}}'
        issues.append(ConfigIssue(ARGUMENT, key, "unknown key", hint))
    if issues:
        raise RecipeError(*issues)


def check_types(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise RecipeError for paths, texts, switches, and lists and mappings, that are none.

    Arguments with another annotation are options, edits or data, validated where they are read.
    """
    issues = []
    types = _read_types(function)
    # positional arguments in their order; too many of them are Python's to refuse
    named = dict(zip(types, args, strict=False)) | dict(kwargs)
    for key, value in named.items():
        forms = types.get(key, ())
        if forms and not any(_fits(form, value) for form in forms):
            message = f"expected {_describe(forms)}, got {reprlib.repr(value)}"
            issues.append(ConfigIssue(ARGUMENT, key, message))
    if issues:
        raise RecipeError(*issues)


class _Names(dict[str, Any]):
    """The names that an annotation may use; one that only type checkers see stands for any type."""

    def __missing__(self, name: str) -> Any:
        return Any


@functools.cache
def _read_types(function: Callable[..., Any]) -> Mapping[str, tuple[Any, ...]]:
    """Return the types that each argument of a function may have; none for one not checked."""
    names = _Names({**vars(builtins), **STAND_INS, **function.__globals__})
    types: dict[str, tuple[Any, ...]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        # annotations are strings, and a type checker holds that they are types
        annotation = eval(parameter.annotation, {}, names)
        is_union = get_origin(annotation) in (Union, UnionType)
        forms = get_args(annotation) if is_union else (annotation,)
        types[name] = forms if all(map(_is_checked, forms)) else ()
    return types


def _is_checked(form: Any) -> bool:
    """Return whether values of a type can be told from others."""
    origin = get_origin(form) or form
    if origin is Sequence:
        return _list_members(form) != ()
    if origin is Mapping or origin in NOUNS:
        return True
    return isinstance(origin, type) and issubclass(origin, Recipe | os.PathLike | Model)


def _list_members(form: Any) -> tuple[Any, ...]:
    """Return the types of the entries of a list of paths or strings; none for anything else."""
    if get_origin(form) is not Sequence:
        return ()
    (entry,) = get_args(form)
    members = get_args(entry) if get_origin(entry) in (Union, UnionType) else (entry,)
    return members if Path in members or members == (str,) else ()


def _fits(form: Any, value: Any) -> bool:
    if members := _list_members(form):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        # other iterables, such as generators, can be read only once
        entries = value if isinstance(value, list | tuple) else ()
        return all(any(_fits(member, entry) for member in members) for entry in entries)
    origin = get_origin(form) or form
    # anything that names a path is as good as one
    return isinstance(value, os.PathLike if issubclass(origin, os.PathLike) else origin)


def _describe(forms: Sequence[Any]) -> str:
    """Return types as a noun: a path or a list of paths."""
    nouns = []
    for form in forms:
        origin = get_origin(form) or form
        if origin is Mapping:
            nouns.append("a mapping")
        elif members := _list_members(form):
            nouns.append("a list of paths" if Path in members else "a list of strings")
        elif form is not str or Path not in forms:
            nouns.append(NOUNS.get(origin) or f"a {origin.__name__.lower()}")
    return " or ".join(dict.fromkeys(nouns))


def read_datasets(data: Any, spec: DataSpec | None = None) -> Datasets | None:
    """Return the datasets of an argument `data`, None without one.

    Args:
        data: Datasets by split, a pair of them, or a Lightning data module.
        spec: The facts of their samples.

    Raises:
        RecipeError: It cannot be used.
    """
    if data is None and spec is None:
        return None
    from zoo.data.torch_dataset import collect_datasets

    try:
        if data is None:
            raise OptionError("spec", "`spec` requires `data`")
        return collect_datasets(data, spec)
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, error.message)) from None


def name_datasets(datasets: Datasets | None) -> Overrides:
    """Return the overrides that name datasets in the recipe."""
    if datasets is None:
        return {}
    from zoo.data.torch_dataset import describe_datasets

    return {"data.name": "torch_dataset", "data.description": describe_datasets(datasets)}


@contextlib.contextmanager
def isolate_process(verbose: bool | None) -> Iterator[None]:
    """Show the log of the block if asked, and then restore what it changed of the process.

    Args:
        verbose: Whether to print messages of level INFO. None leaves logging to the caller.
    """
    import torch

    from zoo.run.checkpoint import get_random_state, set_random_state

    with LOCK, explain_imports(), warnings.catch_warnings(), show_log(verbose):
        # taken inside the lock: another thread may be within a command
        environment, generators = dict(os.environ), get_random_state()
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        benchmark = torch.backends.cudnn.benchmark
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
            torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
            torch.set_default_dtype(dtype)
            # setting the number starts a new pool of threads, even if it is the same
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            set_random_state(generators)
            # changed in place: C libraries do not see another mapping
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update(environment)


@contextlib.contextmanager
def show_log(verbose: bool | None) -> Iterator[None]:
    """Print messages of level INFO to standard error within the block, as the command line does.

    Handlers of the caller get none of them; only train.log receives messages of level DEBUG.
    """
    if verbose is None:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.INFO if verbose else logging.ERROR)
    handler.setFormatter(EscapingFormatter("%(message)s"))
    levels = {name: logging.getLogger(name).level for name in LIGHTNING_LOGS}
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    # handlers of the caller would print every line twice
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
