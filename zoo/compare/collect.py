"""All that the folder of a comparison holds, as one result: from its plan and the files of its cells alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zoo.compare.fairness import Known, differing, shared, unfair
from zoo.compare.plan import CELLS, ComparisonPlan
from zoo.compare.results import TRAINED, Comparison, Variant
from zoo.compare.run_files import cell, elsewhere, files


def gathered(plan: ComparisonPlan, folder: Path) -> Comparison:
    """The comparison as far as it has come."""
    found = {planned.name: files(folder / CELLS / planned.name) for planned in plan.cells}
    known = [
        Known(
            planned.variant, cell(plan, folder, planned, found[planned.name]), found[planned.name]
        )
        for planned in plan.cells
    ]
    names = [one.variant for one in known]
    cells = differing(known, [axis.key for axis in plan.axes])
    variants = [
        Variant(
            name=name,
            values=values,
            cells=tuple(
                cell for variant, cell in zip(names, cells, strict=True) if variant == name
            ),
        )
        for name, values in plan.variants.items()
    ]
    told = unfair(variants, known)
    swept = (
        elsewhere(plan, planned, one.files)
        for planned, one in zip(plan.cells, known, strict=True)
        if one.cell.state == "done"
    )
    kinds = {place: kind for places in swept for place, (kind, _) in places.items()}
    return Comparison(
        zoo=plan.zoo_version,
        made=plan.created,
        command=plan.command,
        recipe=plan.recipe,
        base=plan.base,
        machine=plan.machine,
        axes=plan.axes,
        seeds=plan.seeds,
        measure=plan.measure,
        better=plan.better,
        kinds=kinds,
        places=(TRAINED, *kinds),
        trained=plan.training_size,
        windows=plan.windows,
        shared=shared(known),
        variants=tuple(replace(variant, unfair=told[variant.name]) for variant in variants),
    )
