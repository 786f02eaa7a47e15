"""`zoo.diagnose(model, batch)`: a page about the attention of an equipped model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from zoo.attention.layer import find_encoded
from zoo.diagnosis.diagnose import build_attended, choose_page
from zoo.diagnosis.inputs import CapturedAttention, capture_attention
from zoo.diagnosis.report import (
    UNCHANGED,
    Control,
    DiagnosedRun,
    Report,
    Sample,
    compute_measures,
    describe_ablation,
    draw_profiles,
)
from zoo.diagnostics.capture import evaluation_mode, number_layers
from zoo.diagnostics.encoding_panels import draw_encodings
from zoo.diagnostics.position_ablation import CHANGES, change_positions
from zoo.diagnostics.token_layout import Layout, find_layout, to_pictures
from zoo.errors import NonFiniteError, OptionError
from zoo.utils import format_now
from zoo.version import __version__

log = logging.getLogger("zoo")

LOSS, CHANGE = "loss", "change of the output"
Batch = Mapping[str, Any] | Sequence[Any] | Tensor


class BoundModel(nn.Module):
    """A model with the arguments of one call.

    Args:
        model: The model.
        batch: Its keyword arguments, its arguments, or the only one.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model, self.batch = model, batch

    def forward(self) -> Any:
        """Call the model."""
        if isinstance(self.batch, Mapping):
            return self.model(**self.batch)
        if isinstance(self.batch, Tensor):
            return self.model(self.batch)
        return self.model(*self.batch)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the batch."""
        if isinstance(self.batch, Tensor):
            return [self.batch]
        values = self.batch.values() if isinstance(self.batch, Mapping) else self.batch
        return [value for value in values if isinstance(value, Tensor)]


def diagnose_model(
    model: nn.Module,
    batch: Batch,
    *,
    decode: Callable[[list[int]], str] | None = None,
    queries: int = 64,
    layers: Sequence[int] | None = None,
    controls: bool = True,
    to: str | None = None,
) -> tuple[Report, Path]:
    """Measure the attention of an equipped model on one batch.

    Args:
        model: The model; it runs in evaluation mode and is left as it was.
        batch: Its keyword arguments, its arguments, or the only one.
        decode: Turns token ids into text, such as a tokenizer's `decode`; else ids are shown.
        queries: Query positions at most; class and register tokens come in addition.
        layers: Layers to show, from 0; None: all.
        controls: Run again with positions shuffled, shifted, zeroed and reversed.
        to: The page; None: diagnosis.html.

    Returns:
        The report, and the path of its page.

    Raises:
        OptionError: The model is not equipped, or lacks a layer.
        RecipeError: The page cannot be written.
        NonFiniteError: Attention is not finite.
    """
    _check_model(model, layers, queries)
    page = choose_page(to, [])
    bound = BoundModel(model, batch)
    layout = find_layout(bound, (), queries)

    log.info("%s: capturing its attention", type(model).__name__)
    seen = capture_attention(bound, (), layout, layers)
    _check_attention(seen)
    tests = [*_run_controls(bound, controls)]
    measures = compute_measures(seen.layers, seen.zeroed, seen.shifted)
    run = DiagnosedRun(
        name=type(model).__name__,
        checkpoint="a model in memory",
        recipe="",
        unit=_unit(layout),
        encoding=tuple(one.name for one in find_encoded(model)[0].chains[0]),
        facts=_list_facts(bound, seen, tests),
        metrics=tests[0].metrics,
        training=(),
        measures=tuple(one for one in measures if not one.values.isnan().all()),
        profiles=draw_profiles(seen.layers),
        attended=build_attended(seen, _describe_samples(bound, seen, decode)),
        encodings=draw_encodings(bound, (), seen.layers, layout.grid),
        controls=tuple(tests) if controls else (),
        extrapolation=(),
    )
    return Report(version=__version__, made=format_now(), runs=(run,)), page


def _unit(layout: Layout) -> Literal["tokens", "patches"]:
    return "tokens" if len(layout.grid) == 1 else "patches"


def _check_attention(seen: CapturedAttention) -> None:
    for one in seen.layers:
        if not one.weights.isfinite().all():
            raise NonFiniteError(f"attention in layer {one.layer} is infinite or NaN")


def _check_model(model: nn.Module, layers: Sequence[int] | None, queries: int) -> None:
    if not find_encoded(model):
        problem = f"{type(model).__name__} has no encodings of zoo"
        raise OptionError("model", f"{problem}; call zoo.equip(model, ...) first")
    if queries < 1:
        raise OptionError("queries", f"{queries} queries are none; choose 1 at least")
    number_layers(model, layers)


def _run_controls(bound: BoundModel, are_wanted: bool) -> Iterator[Control]:
    """Yield the loss and the change of the output, first with positions as they are."""
    output, loss = _compute_output(bound)
    yield Control(name=UNCHANGED, metrics=_list_metrics(loss, 0.0))
    for name, change in CHANGES.items() if are_wanted else ():
        log.info("running with positions %s", name)
        try:
            with change_positions(bound, change):
                other, loss = _compute_output(bound)
        except OptionError as error:
            yield Control(name=name, metrics={}, refused=str(error))
            continue
        by = float((other - output).norm() / output.norm().clamp(min=1e-30))
        yield Control(name=name, metrics=_list_metrics(loss, by))


def _list_metrics(loss: float | None, change: float) -> dict[str, float]:
    return {CHANGE: change} if loss is None else {LOSS: loss, CHANGE: change}


def _compute_output(bound: BoundModel) -> tuple[Tensor, float | None]:
    """Compute the first floating-point tensor of the output, and the loss if the model has one."""
    with evaluation_mode(bound):
        found = bound()
    loss = found.get("loss") if isinstance(found, Mapping) else None
    values = [found] if isinstance(found, Tensor) else _list_values(found)
    large = [value for value in values if isinstance(value, Tensor) and value.ndim]
    if not large:
        raise OptionError("model", f"{type(bound.model).__name__} returned no tensor")
    return large[0].float(), None if loss is None else float(loss)


def _list_values(found: Any) -> list[Any]:
    return [*found.values()] if isinstance(found, Mapping) else [*found]


def _describe_samples(
    bound: BoundModel, seen: CapturedAttention, decode: Callable[[list[int]], str] | None
) -> tuple[Sample, ...]:
    count, layout = len(seen.weights), seen.layout
    titles = [f"sample {number + 1}" for number in range(count)]
    for values in bound.tensors:
        if len(layout.grid) > 1 and values.ndim == 4:
            low, high = values.amin(), values.amax()
            images = (values.float() - low) / (high - low).clamp(min=1e-12)
            return tuple(
                Sample(title=title, pictures=to_pictures(image, layout.grid[0]))
                for title, image in zip(titles, images, strict=True)
            )
        is_text = not values.is_floating_point() and values.shape == (count, layout.tokens)
        if is_text and len(layout.grid) == 1:
            return tuple(
                Sample(title=title, tokens=tuple(_decode(token, decode) for token in row))
                for title, row in zip(titles, values.tolist(), strict=True)
            )
    numbered = tuple(str(number) for number in range(layout.tokens))
    return tuple(Sample(title=title, tokens=numbered) for title in titles)


def _decode(token: int, decode: Callable[[list[int]], str] | None) -> str:
    return str(token) if decode is None else decode([token])


def _list_facts(
    bound: BoundModel, seen: CapturedAttention, tests: Sequence[Control]
) -> dict[str, str]:
    layout, first = seen.layout, seen.layers[0]
    dims, unit = first.chain.dims, _unit(seen.layout)
    metric = LOSS if LOSS in tests[0].metrics else CHANGE
    heads = f"{dims.heads} heads"
    if dims.num_kv_heads != dims.heads:
        heads += f", {dims.num_kv_heads} key-value heads"
    name = type(bound.model).__name__
    parameters = sum(parameter.numel() for parameter in bound.model.parameters())
    sample = f"{' x '.join(map(str, layout.grid))} {unit}"
    if layout.extra:
        sample += f"; before them {', '.join(layout.extra)}"
    return {
        "use of positions": describe_ablation(tests, metric, first.call.causal),
        "model": f"{name}, layers: {len(layout.layers)}, {heads}, width {dims.dim}",
        "parameters": f"{parameters:,}",
        "a sample": sample,
        "samples": f"{len(seen.weights):,}",
    }
