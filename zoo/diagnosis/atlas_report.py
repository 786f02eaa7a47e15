"""The contents of an atlas: what heads, frequencies and layers of models do with positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from zoo.diagnosis.frequency_use import LayerFrequencies
from zoo.diagnosis.head_jobs import JobScores
from zoo.diagnosis.position_probes import LayerProbe
from zoo.diagnosis.receptive_field import LayerField
from zoo.diagnosis.report import PairedChange

T = TypeVar("T")

LOSSES = {"given": "loss, given samples", "repeated": "loss, repeated text"}
"""The facts about how well a model does without ablations, by the name of what it is run on."""


@dataclass(frozen=True, kw_only=True)
class AblatedHead:
    """The changes of losses when the output of one head is set to 0.

    Attributes:
        layer: Index of the layer.
        head: Index of the head, from 0.
        given: Change on the given samples; None if it has no value.
        repeated: Change on the second half of repeated random text; None if there is none.
    """

    layer: int
    head: int
    given: PairedChange | None
    repeated: PairedChange | None


@dataclass(frozen=True, kw_only=True)
class LayerMeans:
    """A measure of attention, averaged over the heads of each layer.

    Attributes:
        name: The name of the measure in a diagnosis.
        title: Its title.
        unit: The unit of the values.
        values: [L]; NaN for layers without one.
        even: Value of attention spread evenly over all visible keys; None if there is none.
    """

    name: str
    title: str
    unit: str
    values: Tensor
    even: float | None


@dataclass(frozen=True, kw_only=True)
class AtlasRun:
    """The atlas of one model.

    Attributes:
        name: A name that is unique in the report.
        checkpoint: The location of its weights.
        fingerprint: A digest of the weights, the recipe and the options; empty for a model in
            memory.
        unit: The unit of positions: tokens, patches or points.
        facts: Facts about the model and what it was run on, by title.
        layers: Indices of the layers.
        jobs: Scores of heads for known jobs.
        ablated: The heads whose output was set to 0.
        measures: Measures of attention by layer.
        frequencies: The use of rotary frequencies by layer; empty if no pairs of channels turn.
        fields: The receptive fields after some layers.
        probes: Linear probes of positions after some layers.
        absent: Why a part is missing, by the key of its section.
    """

    name: str
    checkpoint: str
    fingerprint: str
    unit: str
    facts: Mapping[str, str]
    layers: tuple[int, ...]
    jobs: tuple[JobScores, ...]
    ablated: tuple[AblatedHead, ...]
    measures: tuple[LayerMeans, ...]
    frequencies: tuple[LayerFrequencies, ...]
    fields: tuple[LayerField, ...]
    probes: tuple[LayerProbe, ...]
    absent: Mapping[str, str]

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `atlas.json` has of a run. Raises KeyError, TypeError or ValueError."""
        return cls(
            **{
                **stored,
                "layers": tuple(stored["layers"]),
                "jobs": tuple(_read(JobScores, one) for one in stored["jobs"]),
                "ablated": tuple(
                    AblatedHead(
                        **{
                            **one,
                            "given": _read_change(one["given"]),
                            "repeated": _read_change(one["repeated"]),
                        }
                    )
                    for one in stored["ablated"]
                ),
                "measures": tuple(_read(LayerMeans, one) for one in stored["measures"]),
                "frequencies": tuple(_read(LayerFrequencies, one) for one in stored["frequencies"]),
                "fields": tuple(_read_field(one) for one in stored["fields"]),
                "probes": tuple(_read(LayerProbe, one) for one in stored["probes"]),
            }
        )


@dataclass(frozen=True, kw_only=True)
class AtlasReport:
    """The atlases of one or several models.

    Attributes:
        version: Version of zoo.
        made: Time in UTC.
        runs: The models.
    """

    version: str
    made: str
    runs: tuple[AtlasRun, ...]


def _read(kind: type[T], stored: Mapping[str, Any]) -> T:
    """Return a dataclass whose tensors were stored as nested lists, with None for NaN."""
    values = {
        # annotations are texts in this package
        field.name: _read_tensor(stored[field.name])
        if field.type in (Tensor, "Tensor")
        else stored[field.name]
        for field in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**values)


def _read_tensor(stored: Any) -> Tensor:
    def fill(values: Any) -> Any:
        if isinstance(values, list):
            return [fill(value) for value in values]
        return torch.nan if values is None else values

    return torch.tensor(fill(stored), dtype=torch.float64)


def _read_field(stored: Mapping[str, Any]) -> LayerField:
    allowed = torch.nan if stored["allowed"] is None else stored["allowed"]
    return _read(LayerField, {**stored, "allowed": allowed})


def _read_change(stored: Mapping[str, Any] | None) -> PairedChange | None:
    if stored is None:
        return None
    ends = {end: torch.nan if stored[end] is None else stored[end] for end in ("low", "high")}
    return PairedChange(**{**stored, **ends})
