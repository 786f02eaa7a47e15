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
        *find_split_blocks([record for _, record in cells if record.state == "done"], plan),
        *_find_leaks(cells),
        *_find_late(hypotheses),
        *_find_trained_on(cells, race),
    )


def _find_edits(cells: Sequence[tuple[PlannedCell, CellRecord]]) -> Iterator[RecordFlaw]:
    for _, record in cells:
        if record.is_refused:
            yield RecordFlaw(kind="edited", text=record.error)


def _find_gaps(cells: Sequence[tuple[PlannedCell, CellRecord]]) -> Iterator[RecordFlaw]:
    """Yield the studies that a variant lacks though it has later ones, as if chosen by result."""
    studies: dict[str, dict[int, bool]] = {}
    for planned, record in cells:
        if planned.study is not None:
            by_study = studies.setdefault(planned.variant, {})
            # a refused cell is named already
            is_there = record.state == "done" or record.is_refused
            by_study[planned.study] = by_study.get(planned.study, True) and is_there
    gaps: dict[tuple[int, ...], list[str]] = {}
    for variant, by_study in studies.items():
        last_done = max((study for study, is_done in by_study.items() if is_done), default=0)
        missing = tuple(study for study in range(last_done) if not by_study.get(study))
        if missing:
            gaps.setdefault(missing, []).append(variant)
    for missing, variants in gaps.items():
        numbers = join_words(missing)
        sentence = f"{join_words(variants)}: later studies are done, but not {numbers}"
        yield RecordFlaw(kind="missing study", text=sentence)


def find_split_blocks(cells: Sequence[CellRecord], plan: ComparisonPlan) -> Iterator[RecordFlaw]:
    """Yield the blocks whose cells were trained on several machines: they are not paired."""
    planned = {cell.name: cell for cell in plan.cells}
    machines: dict[int, dict[str, list[str]]] = {}
    for record in cells:
        if record.name in planned and record.machine:
            by_machine = machines.setdefault(planned[record.name].block, {})
            by_machine.setdefault(record.machine, []).append(record.name)
    for block, names in machines.items():
        # numbers of two processors differ in the last digits, so their difference is not noise of
        # seeds only
        if len(names) > 1:
            word = "seed" if all(cell.study is None for cell in plan.cells) else "study"
            where = "; ".join(
                f"{', '.join(cell_names)} on {name}" for name, cell_names in names.items()
            )
            sentence = f"the cells of {word} {block} were trained on several machines: {where}"
            yield RecordFlaw(kind="split block", text=sentence)


def _find_leaks(cells: Sequence[tuple[PlannedCell, CellRecord]]) -> Iterator[RecordFlaw]:
    """Yield tested trials that validation did not choose: the test may have chosen instead."""
    studies: dict[tuple[str, int | None], list[CellRecord]] = {}
    for planned, record in cells:
        if planned.trial is not None and record.state == "done":
            studies.setdefault((planned.variant, planned.study), []).append(record)
    for (variant, study), trials in studies.items():
        best = choose_trial(trials)
        for trial in trials:
            if trial.is_tested and trial is not best:
                chosen = "" if best is None else f", though validation chose {best.name}"
                sentence = f"{variant}, study {study}: {trial.name} was tested{chosen}"
                yield RecordFlaw(kind="test leak", text=sentence)


def choose_trial(trials: Sequence[CellRecord]) -> CellRecord | None:
    """Return the trial with the best validation value, of equal ones the first; None if none."""
    modes = [trial.mode for trial in trials if trial.value is not None]
    better: Better = "high" if "max" in modes else "low"
    number = choose_best([trial.value for trial in trials], better)
    return None if number is None else trials[number]


def _find_late(hypotheses: Sequence[RecordedHypothesis]) -> Iterator[RecordFlaw]:
    for hypothesis in hypotheses:
        if hypothesis.runs_ended:
            sentence = (
                f"{hypothesis.text}: written after {hypothesis.runs_ended} runs had ended, "
                "so no prediction"
            )
            yield RecordFlaw(kind="late hypothesis", text=sentence)


def _find_trained_on(
    cells: Sequence[tuple[PlannedCell, CellRecord]], race: RaceResult | None
) -> Iterator[RecordFlaw]:
    """Yield the studies in which a variant was trained though a look had stopped it."""
    studies: dict[str, list[int]] = {}
    for planned, record in cells:
        if race is None or planned.study is None or record.state != "done":
            continue
        if not race.is_trained(planned.variant, planned.study):
            trained = studies.setdefault(planned.variant, [])
            trained += [] if planned.study in trained else [planned.study]
    for variant, trained in studies.items():
        numbers = ", ".join(map(str, trained))
        sentence = (
            f"{variant}: trained in studies {numbers}, though a look had stopped it; left out"
        )
        yield RecordFlaw(kind="trained on", text=sentence)
