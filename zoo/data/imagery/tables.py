"""Tables of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo.data.tables import opening

WHERE = ("__url__", "__key__")  # the columns in which webdataset names a shard, and a sample in it


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table that hold images and labels."""

    image: str
    label: str


def split(tables: Mapping[str, Any], name: str, columns: Columns, path: str) -> Any:
    """One table with the columns `image` and `label`, and WHERE it has them; its images are not yet decoded."""
    import datasets

    table = opening.split(tables, name, (columns.image, columns.label), path)
    # first: what comes after decodes in a stream
    table = table.cast_column(columns.image, datasets.Image(decode=False))
    table = table.select_columns([columns.image, columns.label, *(word for word in WHERE if word in table.features)])
    given = {columns.image: "image", columns.label: "label"}
    return table.rename_columns({old: new for old, new in given.items() if old != new})
