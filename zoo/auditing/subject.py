"""The subject of an audit: a model of transformers, or functions of token ids and positions."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zoo.errors import OptionError, escape_text

CACHES = ("cache", "past_key_values", "cache_params", "mems", "state")
"""Names under which models of transformers return what a continuation reads."""
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

    @classmethod
    def from_model(cls, model: nn.Module) -> AuditSubject:
        """Return the subject for a model of transformers or of zoo.

        Args:
            model: A decoder or an encoder with logits or hidden states as output, or a task of zoo
                with one.

        Raises:
            OptionError: It reads no token ids, or needs more than those.
        """
        # not before: it imports this module
        from zoo.auditing.zoo_subjects import find_language_model, make_language_subject

        language_model = find_language_model(model)
        if language_model is not None:
            return make_language_subject(language_model)
        remedy = "pass zoo.AuditSubject(logits=..., cached=...) with functions of token ids"
        if getattr(model, "main_input_name", None) != "input_ids":
            problem = f"{type(model).__name__} is no model of transformers that reads token ids"
            raise OptionError("model", f"{problem}; {remedy}")
        try:
            subject = make_subject(model)
            options = find_options(subject)
        except (*REFUSALS, NotAskedError) as error:
            lines = str(error).strip().splitlines()
            reason = lines[0][:160] if lines else type(error).__name__
            problem = f"{type(model).__name__} computes no logits from token ids alone: {reason}"
            raise OptionError("model", escape_text(f"{problem}; {remedy}")) from None
        if subject.has_unknown_class and "attention_mask" in read_parameters(model):
            # An unknown class that names a mask promises to follow it.
            options |= {"attention_mask"}
        return replace(subject, options=options)

    def with_model(self, model: nn.Module) -> AuditSubject:
        """Return the same subject with another model, such as a copy in float64."""
        return replace(make_subject(model), options=self.options, is_causal=self.is_causal)

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


def read_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters of a model's forward and those of its bases.

    A wrapper in a subclass may hand on keywords without naming them.
    """
    return {
        name
        for cls in type(model).__mro__
        if "forward" in vars(cls)
        for name in inspect.signature(vars(cls)["forward"]).parameters
    }


def make_subject(model: Any) -> AuditSubject:
    """Return the subject for a model of transformers, with all options."""
    config = model.config.get_text_config()
    parameters = read_parameters(model)

    def call(ids: Tensor, options: dict[str, Any]) -> Any:
        arguments = {"input_ids": ids}
        if "positions" in options:
            arguments["position_ids"] = options["positions"]
        if "attention_mask" in options:
            arguments["attention_mask"] = options["attention_mask"]
        return model(**arguments, **options.get("further", {}))

    def compute_logits(ids: Tensor, **options: Tensor) -> Tensor:
        further = {"use_cache": False} if "use_cache" in parameters else {}
        return read_logits(call(ids, {**options, "further": further}))

    def compute_cached(ids: Tensor, cache: Any = None, **options: Tensor) -> tuple[Tensor, Any]:
        further = {"use_cache": True}
        if cache is not None:
            name, value = cache
            further[name] = value
        output = call(ids, {**options, "further": further})
        taken = [name for name in CACHES if name in parameters]
        if isinstance(output, tuple):
            name = taken[0] if taken else None
            state = output[1] if len(output) > 1 else None
        else:
            name = next((key for key in CACHES if key in output.keys()), None)  # noqa: SIM118
            state = None if name is None else output[name]
            if name not in taken and taken:
                # The output may have the present name, and the class take the former one: another
                # name would vanish in its **kwargs.
                name = taken[0]
        if name is None or state is None:
            raise NotAskedError("the model returns no cache")
        return read_logits(output), (name, state)

    is_causal = (
        bool(model.can_generate())
        or bool(getattr(config, "is_decoder", False))
        # A cache holds what earlier tokens computed, so that later ones cannot have changed it.
        or (is_unknown(model) and any(name in parameters for name in CACHES))
    )
    length = getattr(config, "max_position_embeddings", None)
    return AuditSubject(
        logits=compute_logits,
        cached=compute_cached if "use_cache" in parameters and is_causal else None,
        vocab_size=min(config.vocab_size, 2**15),
        length=length if isinstance(length, int) and length > 0 else None,
        is_causal=is_causal,
        name=type(model).__name__,
        model=model,
        options=frozenset({"positions", "attention_mask"}),
    )


def read_logits(output: Any) -> Tensor:
    """Return logits [B, N, V], or last hidden states, of an output of transformers."""
    if isinstance(output, Tensor) and output.dim() == 3:
        return output
    if isinstance(output, tuple):
        return read_logits(output[0]) if output else read_logits({})
    for key in ("logits", "last_hidden_state"):
        value = output.get(key)
        if isinstance(value, Tensor) and value.dim() == 3:
            return value
    raise NotAskedError("the model returns no logits of tokens")


def find_options(subject: AuditSubject) -> frozenset[str]:
    """Find the keywords that change what a model computes; others may vanish in its **kwargs."""
    ids = subject.draw_ids(1, 12)
    count = ids.shape[1]
    positions = torch.arange(count, device=ids.device)[None]
    ones = torch.ones_like(ids)
    half = ones.clone()
    half[:, : count // 2] = 0
    accepted = set()
    with torch.no_grad():
        base = subject.logits(ids)
        for option, given in (
            # A gap is read as a new text unless there is a mask.
            ("positions", {"positions": 2 * positions, "attention_mask": ones}),
            ("positions", {"positions": 2 * positions}),
            ("positions", {"positions": 2 * positions + 1, "attention_mask": ones}),
            ("positions", {"positions": 2 * positions + 1}),
            ("attention_mask", {"attention_mask": half}),
        ):
            try:
                output = subject.logits(ids, **given)
            except REFUSALS:
                continue
            if measure_error(output[:, count // 2 :], base[:, count // 2 :]) > 1e-6:
                accepted.add(option)
    return frozenset(accepted)


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
        return states[-1]

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
