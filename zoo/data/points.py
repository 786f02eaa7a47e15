"""Your own sets of points: Parquet tables or NPZ files, with a class or numbers to predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from torch.utils.data import Dataset

from zoo.data.base import DataModule, FileBatch
from zoo.data.baselines import Baselines, score_points
from zoo.data.batches import PointBatch, PointSample
from zoo.data.class_counts import ClassCounts, count_samples
from zoo.data.finite import explain_lost_differences
from zoo.data.padding import pad_points
from zoo.data.point_sets import PointColumns, PointTable, open_point_tables
from zoo.data.sampler import Key, ResumableLoader
from zoo.data.spec import DataSpec, PointSpec
from zoo.data.tables.labelled_table import check_classes, read_label, spell_label
from zoo.data.tables.open_table import SplitOptions
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count
from zoo.registry import register
from zoo.utils import collect_damage

Names = str | tuple[str, ...]


@register
class PointFiles(DataModule):
    """Sets of points of `path`: a Parquet or NPZ file, or a folder with one file for each split.

    A row of a table is a set. `x` names the columns of features and `pos` those of coordinates, one
    or several; a cell is a list with a number, or a list of numbers, for each point. In an NPZ file
    these are arrays [S, N] or [S, N, width] of S sets; an array `mask` [S, N] is true for real
    points. `target` names the class of each set, or the numbers to predict. Classes are strings, or
    integers if `classes` sets their number; by default strings are classes, in alphabetical order,
    and numbers are to be predicted. `train` names a split; `val` and `test` each name one or
    are fractions of `train`. `center` subtracts from coordinates their mean over the set, before
    they are rounded to float32: Unix times are too large for it. Sets are held in memory.
    """

    def __init__(
        self,
        seed: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: float | str = 0.1,
        test: float | str = 0.2,
        x: Names = "x",
        pos: Names = "pos",
        target: Names = "target",
        classes: Count | tuple[str, ...] | None = None,
        center: bool = False,
        batch_size: Count = 64,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        if path is None:
            raise OptionError("path", "missing: set it to the location of your points")
        for key, names in (("x", x), ("pos", pos), ("target", target)):
            if not names:
                raise OptionError(key, "empty; name a column or an array")
        if classes is not None:
            check_classes(classes)
        self.seed, self.path, self.batch_size, self.workers = seed, path, batch_size, workers
        self.splits = SplitOptions(train, val, test)
        self.columns = PointColumns(*map(_to_names, (x, pos, target)))
        self.classes, self.center = classes, center
        self.trained: PointSpec | None = None

    @cached_property
    def tables(self) -> Mapping[str, PointTable]:
        """The tables of all splits, which are read once."""
        tables = open_point_tables(self.path, self.columns)
        for key in ("train", "val", "test"):
            name = self.splits.find_table(key)
            if name not in tables:
                names = ", ".join(tables)
                raise DataError(f"{self.path}: there is no split {name}, but {names}")
        widths = {table.width: table.title for table in tables.values()}
        if len(widths) > 1:
            listed = ", ".join(f"{x} and {pos} in {title}" for (x, pos), title in widths.items())
            raise DataError(f"{self.path}: features and coordinates differ: {listed}")
        return {name: table.place(self.dtype, center=self.center) for name, table in tables.items()}

    @cached_property
    def spec(self) -> PointSpec:  # type: ignore[override]
        table = self.tables[self.splits.train]
        features, axes = table.width
        length = max(max(map(len, split.x), default=1) for split in self.tables.values())
        if isinstance(self.classes, int):
            return PointSpec(features, axes, length, self.classes)
        if self.classes is not None or table.has_text_targets:
            names = self.classes or tuple(sorted({*map(spell_label, table.targets)} - {""}))
            check_classes(names)
            return PointSpec(features, axes, length, len(names), names=names)
        targets = np.stack([sample.target for sample in self._select("train")])
        if lost := explain_lost_differences(targets, "targets"):
            message = f"{lost}; subtract a start"
            raise DataError(f"{table.title}, column {', '.join(self.columns.target)}: {message}")
        # A target that never varies keeps its unit.
        stds = [float(std) or 1.0 for std in targets.std(0)]
        means = tuple(map(float, targets.mean(0)))
        spec = PointSpec(features, axes, length, target_means=means, target_stds=tuple(stds))
        try:
            spec.check()
        except ValueError as error:
            columns = ", ".join(self.columns.target)
            raise DataError(f"{table.title}, column {columns}: {error}; rescale it") from None
        return spec

    @cached_property
    def target_width(self) -> int:
        """Number of numbers to predict of a set, as of the first one of train."""
        return len(self.tables[self.splits.train].read_numbers(0, self.dtype))

    def _select(self, split: str) -> list[PointSample]:
        """Return the sets of a split with their targets."""
        table = self.tables[self.splits.find_table(split)]
        numbers = self.splits.draw_rows(split, len(table.x), self.seed)
        return [PointSample(table.x[n], table.pos[n], self._read_target(table, n)) for n in numbers]

    def _read_target(self, table: PointTable, number: int) -> Any:
        is_class = self.classes is not None or table.has_text_targets
        if not is_class:
            numbers = table.read_numbers(number, self.dtype)
            if len(numbers) != self.target_width:
                expected = f"{self.target_width} in row 0 of {self.tables[self.splits.train].title}"
                message = f"{len(numbers)} numbers to predict, and {expected}"
                raise table.refuse(number, self.columns.target[0], message)
            return numbers
        spec = self.trained or self.spec
        try:
            assert spec.classes is not None
            return read_label(table.targets[number], spec.classes, spec.names)
        except ValueError as error:
            raise table.refuse(number, self.columns.target[0], str(error)) from None

    def count_classes(self, split: str) -> ClassCounts | None:
        """Count the classes of all sets; None if numbers are to be predicted."""
        classes = self.spec.classes
        if classes is None:
            return None
        table = self.tables[self.splits.find_table(split)]
        numbers = self.splits.draw_rows(split, len(table.x), self.seed)
        labels = Counter(self._read_target(table, number) for number in numbers)
        return count_samples(labels, classes, len(numbers), len(numbers), f"{self.path}, {split}")

    def check_source(self) -> None:
        for split in ("train", "val", "test"):
            self._select(split)

    def adopt_spec(self, spec: DataSpec) -> None:
        if not isinstance(spec, PointSpec):
            raise OptionError("", "the model was not trained on points")
        if spec.classes is not None:
            names, tested = set(spec.names), self.spec.names
            if tested and names and not set(tested) <= names:
                message = f"{', '.join(tested)}, but the model was trained with "
                raise OptionError("classes", f"{message}{', '.join(spec.names)}")
            # A part of the classes may be missing in the data of an evaluation.
            self.trained = self.spec = spec

    def setup(self, stage: str) -> None:
        for split in ("train", "val") if stage == "fit" else ("train", "test"):
            self.subsets[split] = PointSets(self._select(split))

    @cached_property
    def subsets(self) -> dict[str, PointSets]:
        """The sets of each split, after `setup`."""
        return {}

    def build_loader(self, split: str) -> ResumableLoader:
        sets, is_training = self.subsets[split], split == "train"
        return ResumableLoader(
            sets, self.batch_size, self.seed, self.workers, self.share, training=is_training
        )

    def count_samples(self, split: str) -> int:
        return len(self.subsets[split])

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        train = self.subsets["train"]
        return lambda tested: score_points(train, tested.subsets["test"], self.spec)

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        """Read the sets of files, which need no targets, in batches of one file."""
        if not isinstance(spec, PointSpec):
            raise OptionError("name", "the model was not trained on points")
        columns = self.columns._replace(target=())
        return (batch for path in paths for batch in self._read_file(path, columns, spec))

    def _read_file(self, path: Path, columns: PointColumns, spec: PointSpec) -> Iterator[FileBatch]:
        errors: dict[Path, str] = {}
        with collect_damage(errors, path):
            (table,) = open_point_tables(str(path), columns).values()
            if table.width != (spec.features, spec.axes):
                widths = "{} features and {} coordinates".format(*table.width)
                message = f"the model reads {spec.features} and {spec.axes}"
                raise DataError(f"its points have {widths}; {message}")
            count = len(table.x)
            table = table.place(self.dtype, center=self.center)
            # 0 stands for the target, which is cut off below
            sets = [PointSample(table.x[n], table.pos[n], 0) for n in range(count)]
        if errors:
            yield FileBatch((), None, errors)
            return
        for start in range(0, count, self.batch_size):
            rows = range(start, min(start + self.batch_size, count))
            batch = pad_points([sets[n] for n in rows])
            yield FileBatch((path,) * len(rows), batch[:-1], {}, tuple(rows))


class PointSets(Dataset[PointBatch]):
    """Sets of points in memory, fetched by batches of keys."""

    def __init__(self, samples: Sequence[PointSample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, keys: Sequence[Key]) -> PointBatch:
        numbers = [key[1] if isinstance(key, tuple) else key for key in keys]
        return pad_points([self.samples[number] for number in numbers])


def _to_names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
