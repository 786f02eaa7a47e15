"""Reasons to doubt the record of a comparison, such as edits, gaps, leaks and late hypotheses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from zoo.comparison.design import choose_best
from zoo.comparison.plan import ComparisonPlan, PlannedCell
from zoo.comparison.record import CellRecord
from zoo.comparison.results import Better, RaceResult, RecordedHypothesis, RecordFlaw
from zoo.suggestions import join_words


def list_findings(
    plan: ComparisonPlan,
    found: Mapping[str, CellRecord],
    hypotheses: Sequence[RecordedHypothesis],
    race: RaceResult | None = None,
) -> tuple[RecordFlaw, ...]:
    """List the reasons to doubt the record of a comparison.

    Args:
        plan: The plan.
        found: {name of a cell: its state in the output folder}.
        hypotheses: The hypotheses of the output folder.
        race: The decisions of the looks, if variants were raced.
    """
    cells = [(cell, found[cell.name]) for cell in plan.cells if cell.name in found]
    return (
        *_find_edits(cells),
        *_find_gaps(cells),
        *find_split_blocks([one for _, one in cells if one.state == "done"], plan),
        *_find_leaks(cells),
        *_find_late(hypotheses),
        *_find_trained_on(cells, race),
    )


def _find_edits(cells: Sequence[tuple[PlannedCell, CellRecord]]) -> Iterator[RecordFlaw]:
    for _, one in cells:
        if one.is_refused:
            yield RecordFlaw(kind="edited", text=one.error)


def _find_gaps(cells: Sequence[tuple[PlannedCell, CellRecord]]) -> Iterator[RecordFlaw]:
    """Yield the studies that a variant lacks though it has later ones, as if chosen by result."""
    studies: dict[str, dict[int, bool]] = {}
    for planned, one in cells:
        if planned.study is not None:
            own = studies.setdefault(planned.variant, {})
            # a refused cell is named already
            is_there = one.state == "done" or one.is_refused
            own[planned.study] = own.get(planned.study, True) and is_there
    gaps: dict[tuple[int, ...], list[str]] = {}
    for variant, own in studies.items():
        last = max((study for study, is_done in own.items() if is_done), default=0)
        missing = tuple(study for study in range(last) if not own.get(study))
        if missing:
            gaps.setdefault(missing, []).append(variant)
    for missing, variants in gaps.items():
        numbers = join_words(missing)
        text = f"{join_words(variants)}: later studies are done, but not {numbers}"
        yield RecordFlaw(kind="missing study", text=text)


def find_split_blocks(cells: Sequence[CellRecord], plan: ComparisonPlan) -> Iterator[RecordFlaw]:
    """Yield the blocks whose cells were trained on several machines: they are not paired."""
    planned = {cell.name: cell for cell in plan.cells}
    machines: dict[int, dict[str, list[str]]] = {}
    for one in cells:
        if one.name in planned and one.machine:
            own = machines.setdefault(planned[one.name].block, {})
            own.setdefault(one.machine, []).append(one.name)
    for block, names in machines.items():
        # numbers of two processors differ in the last digits, so their difference is not noise of
        # seeds only
        if len(names) > 1:
            word = "seed" if all(cell.study is None for cell in plan.cells) else "study"
            where = "; ".join(f"{', '.join(each)} on {name}" for name, each in names.items())
            text = f"the cells of {word} {block} were trained on several machines: {where}"
            yield RecordFlaw(kind="split block", text=text)


def _find_leaks(cells: Sequence[tuple[PlannedCell, CellRecord]]) -> Iterator[RecordFlaw]:
    """Yield tested trials that validation did not choose: the test may have chosen instead."""
    studies: dict[tuple[str, int | None], list[CellRecord]] = {}
    for planned, one in cells:
        if planned.trial is not None and one.state == "done":
            studies.setdefault((planned.variant, planned.study), []).append(one)
    for (variant, study), own in studies.items():
        best = choose_trial(own)
        for trial in own:
            if trial.is_tested and trial is not best:
                chosen = "" if best is None else f", though validation chose {best.name}"
                text = f"{variant}, study {study}: {trial.name} was tested{chosen}"
                yield RecordFlaw(kind="test leak", text=text)


def choose_trial(trials: Sequence[CellRecord]) -> CellRecord | None:
    """Return the trial with the best validation value, of equal ones the first; None if none."""
    modes = [one.mode for one in trials if one.value is not None]
    better: Better = "high" if "max" in modes else "low"
    number = choose_best([one.value for one in trials], better)
    return None if number is None else trials[number]


def _find_late(hypotheses: Sequence[RecordedHypothesis]) -> Iterator[RecordFlaw]:
    for one in hypotheses:
        if one.runs_ended:
            text = f"{one.text}: written after {one.runs_ended} runs had ended, so no prediction"
            yield RecordFlaw(kind="late hypothesis", text=text)


def _find_trained_on(
    cells: Sequence[tuple[PlannedCell, CellRecord]], race: RaceResult | None
) -> Iterator[RecordFlaw]:
    """Yield the studies in which a variant was trained though a look had stopped it."""
    studies: dict[str, list[int]] = {}
    for planned, one in cells:
        if race is None or planned.study is None or one.state != "done":
            continue
        if not race.is_trained(planned.variant, planned.study):
            own = studies.setdefault(planned.variant, [])
            own += [] if planned.study in own else [planned.study]
    for variant, own in studies.items():
        numbers = ", ".join(map(str, own))
        text = f"{variant}: trained in studies {numbers}, though a look had stopped it; left out"
        yield RecordFlaw(kind="trained on", text=text)
