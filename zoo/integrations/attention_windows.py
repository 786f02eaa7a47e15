"""The windows and chunks of a model of transformers, and narrower ones in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

WINDOWS = ("sliding_window", "sliding_window_size", "window_size", "attention_window")
CHUNKS = ("attention_chunk_size",)
DOUBLED = "local_attention"  # the entry of ModernBERT, which counts tokens on both sides


def read_window(config: Any) -> int | None:
    """Return the window of a configuration in tokens; None if no layer has one."""
    return _read_count(config, WINDOWS)


def read_chunk(config: Any) -> int | None:
    """Return the tokens of a chunk in a configuration; None if no layer has chunks."""
    return _read_count(config, CHUNKS)


def is_windowed_kind(name: str) -> bool:
    """Return whether the name of a kind of layers is that of layers with a window."""
    return "sliding" in name or name == "local"


def is_chunked_kind(name: str) -> bool:
    """Return whether the name of a kind of layers is that of layers with chunks."""
    return "chunk" in name


def _read_count(config: Any, names: Sequence[str]) -> int | None:
    for name in names:
        count = getattr(config, name, None)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
    return None


@contextmanager
def narrowed(model: Any, count: int) -> Iterator[None]:
    """Give a model a narrower window, or narrower chunks, for a while.

    Entries of modules and configurations that equal the configured number are replaced, so that a
    layer with another one keeps it.

    Args:
        model: A model with a window or chunks.
        count: Number of tokens of the narrower ones.
    """
    config = model.config.get_text_config()
    replaced = {"window": read_window(config), "chunk": read_chunk(config)}
    replaced[DOUBLED] = _read_count(config, (DOUBLED,))
    owners: list[Any] = [*model.modules(), model.config, model.config.get_text_config()]
    owners += [module.config for module in model.modules() if hasattr(module, "config")]
    with ExitStack() as stack:
        for owner in {id(owner): owner for owner in owners}.values():
            for name, value in list(vars(owner).items()):
                kind = next((kind for kind in replaced if kind in name), None)
                if kind and type(value) is int and value == replaced[kind]:
                    stack.callback(setattr, owner, name, value)
                    setattr(owner, name, count)
        yield
