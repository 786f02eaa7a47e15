"""Packages that zoo builds on: which extra installs each, and what a failed import means.

An import of an optional package stands in `with explain_imports():`, where it is needed. A missing
or broken package then ends in one line with the command that installs or mends it.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType, TracebackType

from zoo.errors import ZooError
from zoo.suggestions import join_words

log = logging.getLogger("zoo")

DISTRIBUTION = "transformer-zoo"
REQUIRED = ("torch", "lightning", "omegaconf", "torchmetrics", "tensorboard")
"""The dependencies of zoo."""

TRANSITIVE = ("lightning-utilities", "numpy", "PyYAML", "pillow", "tqdm")
"""What zoo imports in addition; each of these is a dependency of one in `REQUIRED`."""

TESTED_PYTHON = ("3.11", "3.12", "3.13")
"""Versions of Python that zoo was tested with; newer ones are allowed."""

TESTED_TORCH = ("2.11", "2.13", "2.14", "2.15")
"""Minor versions of torch that zoo was tested with; others are allowed."""

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "images": ("datasets", "fsspec", "kornia", "pandas", "pyarrow"),
        "text": ("datasets", "pandas", "pyarrow", "tokenizers"),
        "compare": ("altair", "Jinja2", "MarkupSafe", "vl-convert-python", "scipy", "safetensors"),
        "hf": ("transformers", "safetensors", "huggingface-hub", "peft", "gguf", "tokenizers"),
        "timm": ("timm", "safetensors"),
        "export": ("onnx", "onnx-ir", "onnxscript", "onnxruntime", "safetensors"),
        "slurm": ("submitit",),
        "shell": ("shtab",),
        "peers": ("timm", "x-transformers"),
        "notebooks": ("ipykernel", "nbclient", "nbformat"),
    }
)
"""Distributions that each extra of pyproject.toml installs."""

MODULES: Mapping[str, str] = MappingProxyType(
    {"pillow": "PIL", "PyYAML": "yaml", "vl-convert-python": "vl_convert"}
)
"""Names to import of distributions that have another name."""


class PackageError(ZooError, ImportError):
    """A package is missing, or cannot be imported; the message names it and the remedy."""

    code = 2


@contextmanager
def explain_imports() -> Iterator[None]:
    """Turn a failed import in the block into one line.

    Raises:
        PackageError: A package is missing or broken.
    """
    try:
        yield
    except Exception as error:
        explained = explain(error)
        if explained is None or explained is error:
            raise
        raise explained from error


@contextmanager
def skip_without_package(problem: str) -> Iterator[None]:
    """Leave out the rest of the block if a package is missing or broken, and log why.

    Args:
        problem: What the user does without.
    """
    try:
        with explain_imports():
            yield
    except PackageError as error:
        log.warning("%s: %s", problem, error)


def explain(error: BaseException) -> PackageError | None:
    """Return the package that caused an error; None if no import of a package did."""
    if isinstance(error, PackageError):
        return error
    # a broken package may raise any error, so the traceback tells whether a module was being
    # imported
    importing = _find_importing(error.__traceback__)
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        if missing in sys.stdlib_module_names:
            problem = f"this Python was built without the module {missing}"
            return PackageError(f"{problem}; install another Python, or what it needs to be built")
        # a module that an installed package lacks is that package's fault, not a missing extra
        if missing in _list_known_modules() and not _is_installed(missing):
            return PackageError(describe_missing(missing))
        if importing is None:
            return None

    if importing is None or not _is_third_party(importing):
        return None
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    problem = f"{importing} is installed but cannot be imported: {first_line}"
    return PackageError(f"{problem}; {suggest_repair(importing, str(error))}")


def describe_missing(module: str) -> str:
    """Return a message that names missing packages and how to install them.

    Args:
        module: Name of the module whose import failed.
    """
    distribution = _find_distribution(module)
    if _find_extra(distribution):
        return f"this needs {distribution}: {suggest_install(distribution)}"

    needed = join_words(list_missing((*REQUIRED, *TRANSITIVE)) or [distribution])
    return f"this needs {needed}: {suggest_install()}"


def suggest_install(*distributions: str) -> str:
    """Return the shell command that installs packages, with the extras of zoo that bring them.

    It is for the environment of this Python, and the way in which zoo is installed there.

    Args:
        distributions: Names of packages. None: zoo and what it requires.
    """
    extras = dict.fromkeys(filter(None, map(_find_extra, distributions)))
    others = [name for name in distributions if not _find_extra(name)]
    if others:
        return format_pip("install", *(_name_project(extras) if extras else ()), *others)
    return format_pip("install", *_name_project(extras))


def suggest_extra(extra: str) -> str:
    """Return the shell command that installs an extra of zoo, as `suggest_install` does."""
    return format_pip("install", *_name_project([extra]))


def format_pip(*words: str) -> str:
    """Return a pip command, quoted for a shell, that acts on the environment of this Python."""
    pip = "pip"
    if not _is_on_path("pip"):
        python = name_python()
        if PathFinder.find_spec("pip"):
            pip = f"{python} -m pip"
        elif shutil.which("uv"):
            # environments that uv creates have no pip
            command, *rest = words
            return f"uv pip {command} --python {python} {shlex.join(rest)}"
        else:
            pip = f"{python} -m ensurepip && {python} -m pip"
    return f"{pip} {shlex.join(words)}"


def name_python() -> str:
    """Return how a shell in the current folder starts this Python."""
    return "python" if _is_on_path("python") else shorten_path(sys.executable or "python")


def name_program(name: str, module: str) -> str:
    """Return how a shell in the current folder starts a program of this Python's environment.

    Args:
        name: The name of the program.
        module: The module to run with `python -m` where no program has been installed.
    """
    if _is_on_path(name):
        return name
    path = Path(sys.executable).parent / name
    return shorten_path(path) if path.is_file() else f"{name_python()} -m {module}"


def shorten_path(path: str | Path) -> str:
    """Return the path of a program, quoted for a shell; relative if it is in the current folder."""
    full = Path(os.path.abspath(path))
    if full.is_relative_to(Path.cwd()):
        relative = str(full.relative_to(Path.cwd()))
        # a shell looks for a name without a slash on the PATH only
        return shlex.quote(relative if "/" in relative else f"./{relative}")
    return shlex.quote(str(full))


def _is_on_path(name: str) -> bool:
    """Return whether a shell finds the program of this Python's environment by its name alone."""
    found = shutil.which(name)
    # not resolved: the Python of an environment is a link to one outside of it
    return found is not None and Path(found).absolute().parent == Path(sys.executable).parent


def _name_project(extras: Iterable[str]) -> tuple[str, ...]:
    """Return what pip installs to have zoo with extras: its clone, where it runs from one."""
    listed = ",".join(extras)
    suffix = f"[{listed}]" if listed else ""
    folder = Path(__file__).parents[1]
    project = folder / "pyproject.toml"
    if not project.is_file() or f'name = "{DISTRIBUTION}"' not in project.read_text("utf-8"):
        return (f"{DISTRIBUTION}{suffix}",)
    return ("-e", f"{'.' if folder == Path.cwd() else folder}{suffix}")


def _find_extra(distribution: str) -> str | None:
    """Return the first extra that brings a package; None if there is none."""
    return next((extra for extra, brought in EXTRAS.items() if distribution in brought), None)


def suggest_repair(module: str, message: str) -> str:
    """Suggest what to do about a package that cannot be imported.

    Args:
        module: Name of the package.
        message: What its import raised.
    """
    distribution = _find_distribution(module)
    if module == "torchvision":
        return (
            "it was built for another torch, and zoo does not need it: "
            f"{format_pip('uninstall', 'torchvision')}, "
            "or install the version that belongs to your torch"
        )
    if found := re.search(r"(lib[\w+.-]+?\.so[\d.]*): cannot open shared object file", message):
        library = found[1]
        package = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6"}.get(library)
        hint = f", on Debian and Ubuntu: apt install {package}" if package else ""
        return f"install the system library {library}{hint}"
    if found := re.search(r"(GLIBC(?:XX)?_[\d.]+)' not found", message):
        return f"it needs a newer system library, with {found[1]}; install an older {distribution}"
    if re.search(r"numpy\.\w+ size changed|compiled using NumPy|numpy\.core|_ARRAY_API", message):
        repair = format_pip("install", "--upgrade", "--force-reinstall", distribution)
        return f"it was built for another numpy: {repair}"
    repair = format_pip("install", "--force-reinstall", "--no-deps", distribution)
    return f"install it again: {repair}"


def require(*distributions: str) -> None:
    """Check that packages are installed before long work that needs them at its end.

    Raises:
        PackageError: Some are missing; the message names the first of each extra.
    """
    missing = list_missing(distributions)
    first_by_extra = {_find_extra(name) or name: name for name in reversed(missing)}
    if first_by_extra:
        names = [*reversed(first_by_extra.values())]
        raise PackageError(f"this needs {join_words(names)}: {suggest_install(*names)}")


def require_extra(*extras: str) -> None:
    """Check that all packages of extras are installed, as `require` does."""
    require(*chain.from_iterable(EXTRAS[extra] for extra in extras))


def list_missing(distributions: Iterable[str]) -> list[str]:
    """Return those distributions that cannot be imported, without importing any."""
    return [one for one in distributions if not _is_installed(name_module(one))]


def name_module(distribution: str) -> str:
    """Return the name to import a distribution by."""
    return MODULES.get(distribution, distribution.replace("-", "_").lower())


def _find_importing(traceback: TracebackType | None) -> str | None:
    """Return the package whose file was being imported when an error was raised, the last one."""
    package = None
    # the innermost module is the one that is broken; those around it only import it
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == "<module>":
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        traceback = traceback.tb_next
    return None if package in (None, "", "__main__", "zoo") else package


def _is_third_party(module: str) -> bool:
    """Return whether a package was installed or is known: no code of the user."""
    if module in _list_known_modules():
        return True
    return module in importlib.metadata.packages_distributions()


def _list_known_modules() -> frozenset[str]:
    known = {*REQUIRED, *TRANSITIVE, "torchvision"}.union(*EXTRAS.values())
    return frozenset(map(name_module, known))


def _find_distribution(module: str) -> str:
    """Return the name to install a module by."""
    for distribution in chain(REQUIRED, TRANSITIVE, *EXTRAS.values()):
        if module == name_module(distribution):
            return distribution
    return next(iter(importlib.metadata.packages_distributions().get(module, [module])))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
