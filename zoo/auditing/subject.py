"""The subject of an audit: functions of token ids and positions, and the model behind them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

OPTIONS = ("positions", "attention_mask", "documents")
REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    ImportError,
)
"""Errors by which models refuse arguments; a refusal is reported with its message."""


class NotAskedError(Exception):
    """A subject cannot be asked; the message says why."""


class Logits(Protocol):
    """Return logits [B, N, V] of token ids [B, N]."""

    def __call__(self, ids: Tensor, **options: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class AuditSubject:
    """The subject of an audit.

    A function lacks a keyword that it cannot follow, and laws that need it are not asked.

    Attributes:
        logits: Returns logits [B, N, V] of token ids [B, N]. Keywords: `positions` [B, N],
            `attention_mask` [B, N], 1 for tokens and 0 for padding, or [B, 1, N, N], true where a
            token sees another one, and `documents` [B, N], the number of each token's text.
        cached: Returns logits of tokens that follow a cache, and the next cache. It receives the
            ids, the cache (None at first) and the keywords of `logits`.
        vocab_size: Tokens are drawn from 3 to `vocab_size` - 1.
        length: Number of positions, if there are finitely many.
        is_causal: Whether no token sees a later one.
        name: Name for the report.
        model: The model, if there is one; laws about modules, configurations and files need it.
        options: The keywords of `logits` that change its result.
    """

    logits: Logits
    cached: Callable[..., tuple[Tensor, Any]] | None = None
    vocab_size: int = 128
    length: int | None = None
    is_causal: bool = True
    name: str = "subject"
    model: Any = None
    options: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        if not self.options:
            names = set(inspect.signature(self.logits).parameters) & {*OPTIONS}
            object.__setattr__(self, "options", frozenset(names))

    @property
    def has_unknown_class(self) -> bool:
        """True if no class of transformers is among the bases of the model's class."""
        return self.model is not None and is_unknown(self.model)

    def require(self, *options: str) -> None:
        """Check that `logits` follows keywords.

        Raises:
            NotAskedError: It does not.
        """
        for option in options:
            if option not in self.options:
                name = "position ids" if option == "positions" else option
                raise NotAskedError(f"the model takes no {name}, or ignores them")

    def draw_ids(self, rows: int, count: int, seed: int = 1) -> Tensor:
        """Draw token ids [rows, count], none of them the likely padding, start or end."""
        draw = torch.Generator("cpu").manual_seed(seed)
        low = min(3, self.vocab_size - 2)
        ids = torch.randint(low, self.vocab_size, (rows, count), generator=draw, device="cpu")
        return ids if self.model is None else ids.to(next(self.model.parameters()).device)


def is_unknown(model: Any) -> bool:
    """Return whether no class of transformers is among the bases of a model's class."""
    return not any(cls.__module__.startswith("transformers.models.") for cls in type(model).__mro__)


def measure_error(logits: Tensor, reference: Tensor) -> float:
    """Return the largest difference relative to the largest absolute value of the reference."""
    if logits.is_complex() or reference.is_complex():
        logits, reference = (torch.view_as_real(one + 0j) for one in (logits, reference))
    logits, reference = logits.detach().double(), reference.detach().double()
    scale = reference.abs().max().clamp(min=1e-30)
    error = float((logits - reference).abs().max() / scale)
    return error if error == error else float("inf")


def copy_in_float64(model: Any) -> nn.Module:
    """Return a copy of a model in float64."""
    double = copy.deepcopy(model).double()
    for module in double.modules():
        config = getattr(module, "config", None)
        if config is not None:
            # Grouped products of experts refuse float64.
            config._experts_implementation_internal = "eager"
    return double


@contextmanager
def leaf_embeddings(subject: AuditSubject) -> Iterator[list[Tensor]]:
    """Make what embeds token ids return leaves for gradients; yield them, one for each call.

    The embedding is found by what it receives, since a class may not name it.
    """
    states: list[Tensor] = []
    tables: list[nn.Module] = []
    embeddings = [one for one in subject.model.modules() if isinstance(one, nn.Embedding)]

    def keep(module: nn.Module, args: Any, output: Tensor) -> Any:
        # The first table that is read is that of the tokens; others read positions.
        if tables and tables[0] is not module:
            return None
        tables[:] = [module]
        states.append(output.detach().requires_grad_(True))
        # A leaf itself cannot be scaled in place.
        return states[-1].clone()

    with ExitStack() as stack:
        for module in embeddings:
            stack.callback(module.register_forward_hook(keep).remove)
        yield states
    if not states:
        raise NotAskedError("no table embeds the tokens")


@contextmanager
def without_dropout(model: nn.Module) -> Any:
    """Put a model into training mode with all dropout off, and restore it."""
    modes = [(module, module.training) for module in model.modules()]
    rates: list[tuple[Any, str, float]] = []
    model.train()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                rates.append((module, name, value))
                setattr(module, name, 0.0)
        if isinstance(module, nn.Dropout):
            rates.append((module, "p", module.p))
            module.p = 0.0
    try:
        yield
    finally:
        for module, name, value in rates:
            setattr(module, name, value)
        for module, mode in modes:
            module.training = mode
