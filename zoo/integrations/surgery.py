"""Changes of a model that can be undone exactly, in reverse order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import OptionError

Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class Surgery:
    """Changes a model, and remembers how each change is undone.

    Args:
        is_copy: Whether the model is a copy of the one that was changed, which alone knows how.
    """

    def __init__(self, is_copy: bool = False) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._is_copy = is_copy

    def __reduce__(self) -> tuple[type[Surgery], tuple[bool]]:
        return Surgery, (True,)

    def call(self, change: Callable[[], Any], *, undo: Callable[[], Any]) -> None:
        """Make a change that `undo` takes back."""
        self._undo.append(undo)
        change()

    def hook(self, module: nn.Module, hook: Hook) -> None:
        """Call `hook` with arguments and keyword arguments before each forward pass of a module."""
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        self._undo.append(handle.remove)

    def set_attribute(self, owner: object, name: str, value: object) -> None:
        """Set an attribute that is there already."""
        original = getattr(owner, name)
        self.call(lambda: setattr(owner, name, value), undo=lambda: setattr(owner, name, original))

    def add_attribute(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of an object that hides one of its class."""
        self.call(lambda: setattr(owner, name, value), undo=lambda: delattr(owner, name))

    def add_module(self, parent: nn.Module, name: str, module: nn.Module) -> None:
        """Register a new submodule."""
        self.call(lambda: parent.add_module(name, module), undo=lambda: delattr(parent, name))

    def replace_module(self, root: nn.Module, path: str, module: nn.Module) -> None:
        """Put another submodule at a dotted path."""
        original = root.get_submodule(path)
        self.call(
            lambda: root.set_submodule(path, module),
            undo=lambda: root.set_submodule(path, original),
        )

    def zero_table(self, root: nn.Module, path: str) -> None:
        """Set the embedding or parameter at a dotted path to 0 and freeze it."""
        parameter = _find_parameter(root, path)
        values, is_trained = parameter.detach().clone(), parameter.requires_grad

        def clear() -> None:
            parameter.requires_grad_(False).zero_()

        def restore() -> None:
            with torch.no_grad():
                parameter.copy_(values)
            parameter.requires_grad_(is_trained)

        self.call(clear, undo=restore)

    def undo(self) -> None:
        """Take back all changes.

        Raises:
            OptionError: The model is a copy.
        """
        if self._is_copy:
            problem = "a copy of an equipped model, or a loaded one, cannot be unequipped"
            raise OptionError("model", f"{problem}; unequip the original")
        while self._undo:
            self._undo.pop()()


def _find_parameter(root: nn.Module, path: str) -> Tensor:
    parent, _, name = path.rpartition(".")
    found = getattr(root.get_submodule(parent), name)
    parameter = found.weight if isinstance(found, nn.Module) else found
    assert isinstance(parameter, Tensor)
    return parameter
