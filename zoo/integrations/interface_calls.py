"""Watch the calls that a model makes at transformers' attention interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface


@dataclass(frozen=True)
class InterfaceCall:
    """One call of the attention interface.

    Shapes: B batch, H query heads, G key-value heads, N queries, M keys, K head dim, V value dim.

    Attributes:
        module: The module that made the call.
        q: Queries [B, H, N, K].
        k: Keys [B, G, M, K].
        v: Values [B, G, M, V].
        mask: The mask that the model made, or None.
        options: The keyword arguments.
        compute: Computes the output [B, N, H, V] and weights, or None, as the model would, for its
            queries, keys and values or for others of the same shapes.
    """

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]
    compute: Callable[..., Any]


Handler = Callable[[InterfaceCall], Any]


@contextmanager
def watch_interface(model: nn.Module, handle: Handler) -> Iterator[None]:
    """Hand each call of the attention interface to a function, which returns its output.

    The model keeps its implementation of attention and its masks.

    Args:
        model: Calls of its modules are handed over.
        handle: Receives a call and returns its output [B, N, H, V] and weights, or None, such as
            `call.compute()`.
    """
    modules = {id(module) for module in model.modules()}
    original = AttentionInterface.get_interface

    def get_interface(self: AttentionInterface, name: str, default: Callable[..., Any]) -> Any:
        function = original(self, name, default)

        def call_watched(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any
        ) -> Any:
            def compute(queries: Tensor = q, keys: Tensor = k, values: Tensor = v) -> Any:
                return function(module, queries, keys, values, *args, **options)

            if id(module) not in modules:
                return compute()
            # Most families pass the mask by its place, some by its name.
            mask = args[0] if args else options.get("attention_mask")
            return handle(InterfaceCall(module, q, k, v, mask, options, compute))

        return call_watched

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = original
