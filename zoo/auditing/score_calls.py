"""Queries and keys of every attention of a model, whatever code computes its scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")
REMEMBERED = 6  # products between which and their softmax nothing but masks happens


@dataclass(frozen=True)
class ScoreCall:
    """The queries and keys of one attention.

    Attributes:
        module: The innermost module that computes the scores.
        q: Queries [B, H, N, K].
        k: Keys [B, H or G, M, K].
    """

    module: nn.Module
    q: Tensor
    k: Tensor


class _ScoreRecorder(TorchFunctionMode):
    """Keeps the operands of products whose result a softmax reads."""

    def __init__(self, current: list[nn.Module]) -> None:
        super().__init__()
        self.current = current
        self.calls: list[ScoreCall] = []
        self._products: list[tuple[Tensor, Tensor, torch.Size]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            given = dict(zip(("query", "key"), args, strict=False)) | dict(kwargs)
            self._keep(given["query"], given["key"])
        elif name in PRODUCTS and isinstance(output, Tensor):
            operands = _read_operands(name, (*args, *kwargs.values()), output)
            if operands is not None:
                self._products = [*self._products, (*operands, output.shape)][-REMEMBERED:]
        elif name in ("softmax", "_softmax") and args and isinstance(args[0], Tensor):
            for q, k, shape in reversed(self._products):
                if _reads_scores(args[0].shape, shape):
                    self._keep(q, k)
                    break
            self._products.clear()
        return output

    def _keep(self, q: Tensor, k: Tensor) -> None:
        if self.current and q.dim() >= 3 and q.shape[-1] == k.shape[-1]:
            heads = [one.detach().reshape(-1, *one.shape[-3:]) for one in (q, k)]
            self.calls.append(ScoreCall(self.current[-1], *heads))


def _reads_scores(shape: torch.Size, scores: torch.Size) -> bool:
    """Return whether what a softmax reads may be scores, whose texts and heads may be joined."""
    # An attention sink adds a column to the scores.
    has_columns = shape[-1] - scores[-1] in (0, 1)
    return (
        has_columns
        and shape[-2:-1] == scores[-2:-1]
        and (shape[:-2].numel() == scores[:-2].numel())
    )


def _read_operands(name: str, args: Any, output: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the queries [..., N, K] and keys [..., M, K] of a product [..., N, M]."""
    if name == "einsum":
        return _read_einsum(args)
    # Keywords stand in the order of the call, after what is added to the product in baddbmm.
    q, k = [one for one in args if isinstance(one, Tensor)][1 if name == "baddbmm" else 0 :][:2]
    if output.dim() < 3 or q.dim() != output.dim() or k.dim() != output.dim():
        return None
    return q, k.transpose(-1, -2)


def _read_einsum(args: Any) -> tuple[Tensor, Tensor] | None:
    if not isinstance(args[0], str) or "->" not in args[0] or len(args) != 3:
        return None
    inputs, _, result = args[0].replace(" ", "").partition("->")
    left, right = inputs.split(",")
    summed = [letter for letter in left if letter in right and letter not in result]
    if len(summed) != 1 or len(result) < 3 or "." in inputs:
        return None
    heads, n, m, width = result[:-2], result[-2], result[-1], summed[0]
    operands = []
    for names, tensor, token in ((left, args[1], n), (right, args[2], m)):
        order = [*(letter for letter in heads if letter in names), token, width]
        if sorted(order) != sorted(names):
            return None
        operands.append(tensor.permute(*(names.index(letter) for letter in order)))
    return operands[0], operands[1]


@contextmanager
def record_scores(model: nn.Module) -> Iterator[list[ScoreCall]]:
    """Record queries and keys of all attentions for a while, in the order of the calls."""
    current: list[nn.Module] = []
    recorder = _ScoreRecorder(current)

    def enter(module: nn.Module, args: Any) -> None:
        current.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        current.pop()

    with ExitStack() as stack:
        for module in model.modules():
            # Softmax and dropout may be modules of their own.
            if any(True for _ in module.parameters()):
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(recorder)
        yield recorder.calls


@contextmanager
def holding(modules: Mapping[nn.Module, list[Any]]) -> Iterator[None]:
    """Make modules return given outputs, one for each call, for a while."""
    counts = dict.fromkeys(modules, 0)

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        counts[module] += 1
        return modules[module][counts[module] - 1]

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(replace).remove)
        yield


@contextmanager
def keeping(modules: list[nn.Module]) -> Iterator[dict[nn.Module, list[Any]]]:
    """Keep the outputs of modules for a while."""
    outputs: dict[nn.Module, list[Any]] = {module: [] for module in modules}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        outputs[module].append(output)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(keep).remove)
        yield outputs


def find_scoring(model: nn.Module, compute: Callable[[], Any]) -> list[nn.Module]:
    """Return the innermost modules that compute scores of attention in a pass, in order."""
    with record_scores(model) as calls:
        compute()
    return list(dict.fromkeys(call.module for call in calls))
