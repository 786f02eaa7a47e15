"""`zoo.compare` in Python: run a comparison, and hand it to the caller with table and figures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.comparison.results import Comparison
from zoo.config import Overrides
from zoo.config.command_line import format_edits, format_flow, format_options
from zoo.config.overrides import list_edits
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError, Stopped
from zoo.reporting.tables import build_frame
from zoo.run.process_state import isolate_process


class ComparisonResult:
    """A comparison and its output folder.

    Attributes:
        path: The folder with results.json, comparison.md, index.html and the figures.
        comparison: What was found, as plain data: variants, their cells, their flags.
        stopped: Whether an interrupt ended it before all cells were done.
    """

    def __init__(self, path: Path, comparison: Comparison, stopped: bool = False) -> None:
        self.path, self.comparison, self.stopped = path.resolve(), comparison, stopped

    def table(self) -> str:
        """Return the answer in words and the table that `zoo compare` prints."""
        from zoo.comparison.text import format_comparison

        return format_comparison(self.comparison)

    def rows(self) -> list[dict[str, Any]]:
        """Return what each cell reached under each condition.

        Returns:
            Rows with variant, the values that vary, seed, state, condition (in words, such as "24
            pixels") and all metrics measured under it.
        """
        return [*self._list_rows()]

    def _list_rows(self) -> Iterator[dict[str, Any]]:
        from zoo.comparison.text import name_condition

        titles = {axis.key: axis.title for axis in self.comparison.axes}
        for variant in self.comparison.variants:
            values = {titles[key]: value for key, value in variant.values.items()}
            for cell in variant.cells:
                own = {"variant": variant.name, **values, "seed": cell.seed, "state": cell.state}
                for condition, metrics in cell.metrics.items():
                    name = name_condition(self.comparison, condition)
                    yield {**own, "condition": name, **metrics}

    def frame(self) -> Any:
        """Return `rows` as a DataFrame of pandas. Raises ZooError if it is not installed."""
        return build_frame(self.rows())

    def figure(self, name: str = "ranking") -> ComparisonFigure:
        """Return a figure, which a notebook shows.

        Args:
            name: ranking, sizes, positions, training or costs.

        Raises:
            DataError: The comparison has no such figure; the message names those it has.
        """
        path = self.path / f"{name}.png"
        if not path.is_file():
            known = ", ".join(sorted(one.stem for one in self.path.glob("*.png")))
            raise DataError(f"{self.path}: there is no figure {name!r}, but {known or 'none'}")
        return ComparisonFigure(path)

    def __repr__(self) -> str:
        return f"ComparisonResult({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


class ComparisonFigure:
    """A figure of a comparison, a PNG file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"ComparisonFigure({str(self.path)!r})"

    def _repr_png_(self) -> bytes:
        """Return the picture for notebooks."""
        return self.path.read_bytes()


def compare(
    recipe: str | None = None,
    overrides: Overrides = (),
    *,
    encodings: Sequence[Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    verbose: bool = True,
    **options: Any,
) -> ComparisonResult:
    """Train a recipe with several encodings, or values of other keys, and rank them.

    It does what `zoo compare` does: cells run in processes of their own, several at the same time.
    An interrupt has them save their state and returns what is there; the same call continues.

    Args:
        recipe: A YAML file or the name of a registered recipe; None with `rebuild`.
        overrides: Changes of the recipe: {key: value}, or a list of `zoo.config.Change` and
            `zoo.config.Removal`.
        encodings: The encodings that vary: names, mappings with options, or lists of these.
        vary: Other keys that vary: {key: [value, ...]}.
        verbose: Print progress to standard error.
        **options: Those of `zoo compare`: seeds, budget, tuning_seed, sampler, halving, hypotheses,
            measure, to, jobs, engine, rebuild, and those of the engine.

    Returns:
        The comparison as far as it has come.

    Raises:
        RecipeError: Something is wrong with an argument or with any cell; nothing was started.
        DataError: Data is missing, or `rebuild` names no comparison.
        ZooError: Some cells failed; the others, and the table, are in the output folder.
    """
    with isolate_process(verbose):
        from zoo.comparison import runner

        varied = {} if encodings is None else {"encodings": encodings}
        varied |= {f"vary.{key}": values for key, values in (vary or {}).items()}
        words = [f"{key}={format_flow(values, key)}" for key, values in varied.items()]
        words += [*format_options(options), *format_edits(list_edits(overrides))]
        if "rebuild" in options:
            return ComparisonResult(Path(options["rebuild"]), runner.rebuild(words))
        if recipe is None:
            remedy = "write zoo.compare(recipe, encodings=[...]), or zoo.compare(rebuild=folder)"
            raise RecipeError(ConfigIssue(ARGUMENT, "", "no recipe", remedy))
        comparison, folder, problem = runner.compare(str(recipe), words, [])
        if problem is not None and not isinstance(problem, Stopped):
            raise problem
        return ComparisonResult(folder, comparison, stopped=problem is not None)
