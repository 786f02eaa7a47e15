"""A report as data: what `zoo diagnose` measures of checkpoints, writes as JSON and draws as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from zoo.panels import Curves, Panel


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of each head in each layer [L, H]. `says` is a sentence: what one should see.

    `even` is what attention would have that is spread evenly over all that a query may see, None where that tells nothing.
    Rows are the layers of the run's `attended`, or all from 0 on where nothing is kept of that.
    """

    name: str
    title: str
    unit: str
    says: str
    values: Tensor  # [L, H]
    even: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the model was shown: the `tokens` of a text, or the `pictures` uint8 [height, width, 3] of an image or a clip.

    A clip has a picture for each step along its first axis.
    """

    title: str
    tokens: tuple[str, ...] = ()
    pictures: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Where each head looks: what chosen queries of a few samples make of the keys.

    Keys are the tokens named in `extra`, which have no place, and then those of `grid`, row by row.
    """

    samples: tuple[Sample, ...]
    grid: tuple[int, ...]  # (tokens,), (rows, columns) or (frames, rows, columns)
    extra: tuple[str, ...]
    layers: tuple[int, ...]  # numbers of those shown, from 0
    queries: tuple[int, ...]  # slots among the keys
    weights: Tensor  # [S, L, H, Q, M]
    rollout: Tensor | None  # [S, Q, M], of the whole model


@dataclass(frozen=True, kw_only=True)
class Control:
    """Metrics of a test with the places of tokens changed, or why the model refuses them."""

    name: str  # as they are, shuffled, shifted, zeroed, reversed
    metrics: Mapping[str, float]
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One checkpoint. `name` tells it apart from the others of the report."""

    name: str
    checkpoint: str
    recipe: str  # as YAML
    encoding: tuple[str, ...]
    facts: Mapping[str, str]  # {what: how much}, to be read first
    unit: Literal["tokens", "patches"]
    metrics: Mapping[str, float]  # of the test, by which the controls are judged
    training: tuple[Curves, ...]
    measures: tuple[Measure, ...]
    profiles: tuple[Panel, ...]  # weight against offset, a panel per layer
    attended: Attended | None
    encodings: tuple[Panel, ...]  # what the encodings have learned and do
    controls: tuple[Control, ...]
    extrapolation: tuple[Curves, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    version: str  # of zoo
    made: str  # UTC
    runs: tuple[Run, ...]
