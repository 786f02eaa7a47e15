"""Imports of the command line: torch is announced, and packages that few metrics need wait.

torch takes a second or more to import, and many seconds the first time on a machine: a line of the
log says so before. torchmetrics imports scipy, torchvision and transformers wherever they are
installed. They take longer to import than torch, and a torchvision that was built for another torch
cannot be imported. It gets deferred names of these packages instead; a deferred name imports its
package when it is first used, so that all metrics work as usual.

Finders (https://docs.python.org/3/reference/import.html#the-meta-path) do both while a command
runs. `import zoo` in a Python program changes no import.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

log = logging.getLogger("zoo")

DEFERRED = ("scipy", "torchvision", "transformers")


class DeferredName:
    """A name of a module; using it imports the module."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def _import(self) -> Any:
        return getattr(import_module(self._module), self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._import(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._import()(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._import())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._import())

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (self._import(),)


class DeferredModule(ModuleType):
    """A module whose names are all deferred."""

    def __getattr__(self, name: str) -> DeferredName:
        if name.startswith("__"):
            raise AttributeError(name)
        return DeferredName(self.__name__, name)


class DeferringFinder:
    """Finds a `DeferredModule` for each module of some packages."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


Execute = Callable[[Loader, ModuleType], None]
"""Executes a module with the loader that the import system has found for it."""


class ExecutingLoader:
    """Loads a module as another loader does, and executes it by a function."""

    def __init__(self, loader: Loader, execute: Execute) -> None:
        self.loader, self.execute = loader, execute

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.execute(self.loader, module)


class ExecutingFinder:
    """Finds a module as the other finders do, and has a function execute it."""

    def __init__(self, name: str, execute: Execute) -> None:
        self.name, self.execute = name, execute

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        # those before this one were asked already, and may be of this class
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = ExecutingLoader(spec.loader, self.execute)  # type: ignore[assignment]
                return spec
        return None


@contextmanager
def insert_finder(finder: Any) -> Iterator[None]:
    """Put a finder before all others within the block."""
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def announce(loader: Loader, module: ModuleType) -> None:
    """Execute a module after a line of the log that names it."""
    log.info("Importing %s", module.__name__)
    loader.exec_module(module)


def defer_packages(loader: Loader, module: ModuleType) -> None:
    """Execute torchmetrics while the packages of `DEFERRED` are deferred."""
    # importing a package that is not installed must fail as usual
    packages = (name for name in DEFERRED if name not in sys.modules and find_spec(name))
    try:
        with insert_finder(DeferringFinder(frozenset(packages))):
            loader.exec_module(module)
    finally:
        # whoever imports one of these packages from now on gets the package itself
        for name, imported in list(sys.modules.items()):
            if isinstance(imported, DeferredModule):
                del sys.modules[name]


def defer_imports() -> None:
    """Defer packages from now on, in a process that zoo has started.

    It has no effect if torchmetrics is imported already.
    """
    sys.meta_path.insert(0, ExecutingFinder("torchmetrics", defer_packages))


@contextmanager
def handle_imports(*, announces: bool) -> Iterator[None]:
    """Within the block, defer packages as `defer_imports` does.

    Args:
        announces: Whether a line of the log says that torch is being imported.
    """
    with ExitStack() as stack:
        stack.enter_context(insert_finder(ExecutingFinder("torchmetrics", defer_packages)))
        if announces:
            stack.enter_context(insert_finder(ExecutingFinder("torch", announce)))
        yield
