"""The window of a model of transformers, and a narrower one in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

WINDOWS = ("sliding_window", "sliding_window_size", "window_size", "attention_window")


def read_window(config: Any) -> int | None:
    """Return the window of a configuration in tokens; None if no layer has one."""
    for name in WINDOWS:
        window = getattr(config, name, None)
        if isinstance(window, int) and not isinstance(window, bool) and window > 0:
            return window
    return None


@contextmanager
def narrowed(model: Any, count: int) -> Iterator[None]:
    """Give a model a narrower window for a while.

    Entries of modules and configurations that equal the configured window are replaced, so that a
    layer with another one keeps it.

    Args:
        model: A model with a window.
        count: Number of tokens of the narrower window.
    """
    window = read_window(model.config.get_text_config())
    owners: list[Any] = [*model.modules(), model.config, model.config.get_text_config()]
    owners += [module.config for module in model.modules() if hasattr(module, "config")]
    with ExitStack() as stack:
        for owner in {id(owner): owner for owner in owners}.values():
            for name, value in list(vars(owner).items()):
                if "window" in name and type(value) is int and value == window:
                    stack.callback(setattr, owner, name, value)
                    setattr(owner, name, count)
        yield
