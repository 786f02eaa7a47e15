"""Laws of a training step: packed, accumulated and checkpointed batches give the same gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.auditing.audit_report import LawResult
from zoo.errors import OptionError

LOWEST = 1e-4  # relative difference of gradients that float32 explains
SAFETY = 16  # a bound is this many times the difference between two orders of the documents
RANDOM = 0.05  # relative difference of equal steps beyond which nothing can be compared

Step = Callable[..., tuple[Any, Mapping[str, Tensor]]]
TRAINING_LAWS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "packing": ("a packed batch trains as its documents alone", {"packed": True}),
    "accumulation": ("accumulated parts train as the whole batch", {"accumulation": 2}),
    "checkpointing": (
        "gradients agree with and without gradient checkpointing",
        {"checkpointing": True},
    ),
}
"""{law: (statement, keywords of the step)}"""


def compute_step(
    step: Step, documents: Sequence[Any], **options: Any
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of a step.

    Raises:
        OptionError: The step returns something else.
    """
    with torch.enable_grad():
        output = step(list(documents), **options)
    if not isinstance(output, tuple) or len(output) != 2 or not isinstance(output[1], Mapping):
        raise OptionError("step", "it must return the loss and {parameter: gradient}")
    loss, gradients = output
    # A step may return the gradients that its next call overwrites.
    copies = {
        name: gradient.detach().double().clone()
        for name, gradient in gradients.items()
        if gradient is not None
    }
    if not copies:
        raise OptionError("step", "it returns no gradients")
    return float(loss), copies


def compare_steps(
    first: tuple[float, dict[str, Tensor]], second: tuple[float, dict[str, Tensor]], bound: float
) -> tuple[float, str | None]:
    """Return the largest relative difference of loss and gradients, and the parameter.

    The parameter is the last one that differs, since gradients are computed from the end; it is
    None if the losses differ only.
    """
    error = abs(first[0] - second[0]) / max(abs(first[0]), 1e-30)
    scale = max(float(one.abs().max()) for one in first[1].values())
    place = None
    for name, gradient in first[1].items():
        other = second[1].get(name)
        difference = 1.0
        if other is not None and other.shape == gradient.shape:
            difference = float((gradient - other).abs().max()) / max(scale, 1e-30)
        error = max(error, difference) if difference == difference else float("inf")
        if not difference <= bound:
            place = name
    return error, place


def ask_training(step: Step, documents: Sequence[Any]) -> tuple[LawResult, ...]:
    """Ask a training step all laws.

    Args:
        step: Returns the loss and {parameter: gradient} of documents, computed one by one, without
            an update. The keywords `packed`, `accumulation` and `checkpointing`, if it has them,
            ask for another way.
        documents: The documents, of different lengths.

    Raises:
        OptionError: It returns something else, or there are too few documents.
    """
    if len(documents) < 2:
        raise OptionError("documents", "two or more documents are needed")
    parameters = inspect.signature(step).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    alone = compute_step(step, documents)
    again = compute_step(step, documents)
    is_random = compare_steps(alone, again, 0.0)[0] > RANDOM
    order = compare_steps(alone, compute_step(step, list(documents)[::-1]), 0.0)[0]
    bound = max(LOWEST, min(SAFETY * order, RANDOM))
    results = []
    for law, (statement, options) in TRAINING_LAWS.items():
        result = LawResult(law=law, statement=statement, status="not asked")
        (keyword,) = options
        if is_random:
            reason = "the same step has other gradients each time: turn dropout off"
            results.append(_answer(result, reason=reason))
            continue
        if keyword not in parameters and not takes_all:
            results.append(_answer(result, reason=f"the step takes no keyword {keyword}"))
            continue
        other = compute_step(step, documents, **options)
        error, name = compare_steps(alone, other, bound)
        if error <= bound:
            results.append(_answer(result, status="kept", error=error, bound=bound))
            continue
        results.append(
            _answer(
                result,
                status="broken",
                error=error,
                bound=bound,
                module=None if name is None else name.rpartition(".")[0] or None,
                **_explain(law, alone, other, bound, name),
            )
        )
    return tuple(results)


def _answer(result: LawResult, **changes: Any) -> LawResult:
    return LawResult(**{**vars(result), **changes})


def _explain(
    law: str,
    alone: tuple[float, dict[str, Tensor]],
    other: tuple[float, dict[str, Tensor]],
    bound: float,
    name: str | None,
) -> dict[str, Any]:
    """Return the cause and the explanation of a broken law."""
    ratios = {
        key: float((other[1][key] * gradient).sum() / gradient.square().sum())
        for key, gradient in alone[1].items()
        if key in other[1] and float(gradient.abs().max()) > 0
    }
    scale = sorted(ratios.values())[len(ratios) // 2] if ratios else 1.0
    scaled = {key: gradient * scale for key, gradient in alone[1].items()}
    if abs(scale - 1) > bound and compare_steps((0.0, scaled), (0.0, other[1]), bound)[0] <= bound:
        return {"cause": f"all gradients are {scale:.4g} times as large"}
    loss = abs(alone[0] - other[0]) <= bound * abs(alone[0])
    if law == "checkpointing":
        sentence = f"the gradient of {name} is another one with gradient checkpointing"
        return {"cause": sentence, "explanation": "checkpointing"}
    if law == "packing" and loss:
        sentence = f"the losses agree, and the gradient of {name} does not"
        return {"cause": sentence, "explanation": "gradients_mix"}
    sentence = f"the loss is {other[0]:.6g} where it should be {alone[0]:.6g}"
    return {"cause": sentence}
