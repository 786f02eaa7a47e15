"""Import torchmetrics, and with it Lightning, without the packages that only some metrics need.

torchmetrics imports scipy, torchvision and transformers wherever they are installed. They take
longer to import than torch, and a torchvision that was built for another torch cannot be imported.
`import zoo` registers a finder (https://docs.python.org/3/reference/import.html#the-meta-path) that
gives torchmetrics deferred names of these packages instead. A deferred name imports its package
when it is first used, so that all metrics work as usual.
"""

from __future__ import annotations

import sys

# type checkers take it for true; importing `typing` would take longer than importing zoo
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

DEFERRED = ("scipy", "torchvision", "transformers")


class DeferredName:
    """A name of a module; using it imports the module."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def _import(self) -> Any:
        from importlib import import_module

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
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class TorchmetricsLoader:
    """Loads torchmetrics, and defers the packages of `DEFERRED` while it is loading."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from importlib.util import find_spec

        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        # importing a package that is not installed must fail as usual
        packages = (one for one in DEFERRED if one not in sys.modules and find_spec(one))
        finder = DeferringFinder(frozenset(packages))
        sys.meta_path.insert(0, finder)
        try:
            self.loader.exec_module(module)
        finally:
            sys.meta_path.remove(finder)
            # whoever imports one of these packages from now on gets the package itself
            for name, one in list(sys.modules.items()):
                if isinstance(one, DeferredModule):
                    del sys.modules[name]


class TorchmetricsFinder:
    """Finds torchmetrics as the other finders do, and loads it with `TorchmetricsLoader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torchmetrics":
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = TorchmetricsLoader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def install() -> None:
    """Register the finder. It has no effect if torchmetrics is imported already."""
    sys.meta_path.insert(0, TorchmetricsFinder())
