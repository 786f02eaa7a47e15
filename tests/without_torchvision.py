"""Import timm without torchvision, which it needs for parts that no test uses."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch


class AnyAttribute(type):
    """The type of classes that have any attribute: its name."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class Anything(ModuleType):
    """A module that has a class of any name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyAttribute(name, (torch.nn.Module,), {})


class NoTorchvision(MetaPathFinder, Loader):
    """Finds stand-ins for torchvision, which timm imports for parts that are not used here."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


def import_timm():
    if find_spec("torchvision"):
        return pytest.importorskip("timm")
    finder = NoTorchvision()
    sys.meta_path.append(finder)
    try:
        return pytest.importorskip("timm")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
