"""Portable cells: a comparison that is packed, continued elsewhere and checked by its own files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import clone_committed, edit_cell, read_cell, read_lasting
from tiny import TINY

import zoo
from zoo.comparison import spot_check
from zoo.comparison.cell_files import build_record
from zoo.comparison.digests import hash_plain
from zoo.comparison.findings import list_findings
from zoo.comparison.plan import ComparisonPlan, PlannedCell, apply_changes, list_changes
from zoo.comparison.record import (
    MAX_VALIDATIONS,
    CellRecord,
    bin_positions,
    group_by_module,
    group_weights,
    hash_plan,
    list_unequal,
    thin_curve,
)
from zoo.comparison.record_file import CELLS_FILE, append_cell, drop_cell, read_cells, write_cells
from zoo.comparison.results import CellMeasurement, Comparison, RecordedHypothesis
from zoo.errors import DataError
from zoo.evaluation.results import ConditionResult
from zoo.run.conditions import Condition

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
    "trainer.max_steps=3",
    "encodings=[none,rope_mixed]",
    "seeds=2",
    "evaluate.resolutions=[16,24]",
]


def list_states(folder):
    found = Comparison.read(Path(folder) / "results.json")
    return {
        (variant.name, cell.seed): cell.state
        for variant in found.variants
        for cell in variant.cells
    }


@pytest.mark.nightly
def test_a_comparison_that_moves_ends_with_the_numbers_of_one_that_stays(compared):
    code, _, message = compared(*BASE, "to=whole")
    assert code == 0, message

    code, _, message = compared(*BASE, "to=first", "part=2/2")
    assert code == 0, message
    assert list_states("first") == {
        ("none", 0): "waiting",
        ("none", 1): "done",
        ("rope_mixed", 0): "waiting",
        ("rope_mixed", 1): "done",
    }
    clone_committed("first", "second")
    assert sorted(path.name for path in Path("second").iterdir() if path.name != ".git") == [
        ".gitattributes",
        ".gitignore",
        "cells.jsonl",
        "plan.json",
    ]
    checked = zoo.check_comparison("second", verbose=False)
    assert checked.is_equal, checked.differences
    assert checked.check.draw
    before = Path("second", CELLS_FILE).read_bytes()
    code, _, message = compared(*BASE, "to=second")
    assert code == 0, message
    assert message.count("done: ") == 2  # the committed ones are not trained again
    assert Path("second", CELLS_FILE).read_bytes().startswith(before)
    assert not Path("second/cells/none-1").exists()
    assert read_lasting("second") == read_lasting("whole")

    # a deleted cell is trained again, to the same digits
    old = read_cell("second", "rope_mixed-1")
    drop_cell(Path("second"), "rope_mixed-1")
    code, _, message = compared(*BASE, "to=second")
    assert code == 0, message
    new = read_cell("second", "rope_mixed-1")
    assert (new.test, new.measured, new.curve) == (old.test, old.measured, old.curve)
    assert (new.start, new.recipe) == (old.start, old.recipe)
    assert read_lasting("second") == read_lasting("whole")

    # an edit is refused by name, and a rebuilt page names it
    edit_cell("second", "rope_mixed-1", test={"test/accuracy": 1.0, "test/loss": 0.1})
    code, _, message = compared(*BASE, "to=second")
    assert code == 4
    assert "second/cells.jsonl: rope_mixed-1: its content does not fit its SHA-256" in message
    code, out, message = compared("rebuild", "second")
    assert code == 4
    for text in (out, message):
        assert "rope_mixed-1: its content does not fit its SHA-256" in text


def test_a_record_is_small_and_says_what_it_was_made_by(compared):
    code, _, message = compared(*BASE, "seeds=[1]", "to=c")
    assert code == 0, message
    for name in ("none-1", "rope_mixed-1"):
        assert not Path(f"c/cells/{name}/checkpoints").exists()
        found = read_cell("c", name)
        assert 800 < len(json.dumps(found.to_dict())) < 4000
        end = json.loads(Path(f"c/cells/{name}/end.json").read_text())
        assert found.test == end["metrics"]
        assert [one.condition.name for one in found.measured] == ["trained", "16", "24"]
        assert found.settings["seed"] == 1
        assert found.environment.packages["torch"]
        assert found.environment.devices["processor"]
        assert len(found.recipe) == len(found.start) == len(found.initial_weights) == 64
        assert found.plan == hash_plan(ComparisonPlan.read(Path("c")))
        assert found.hypotheses == ()
        assert len(found.first_losses) == found.steps == 3
    plan = ComparisonPlan.read(Path("c"))
    assert plan.cells[0].recipe["seed"] == 1
    assert "/cells/" in Path("c/.gitignore").read_text().split("\n")


def test_weights_are_kept_on_request(compared):
    words = (*BASE, "encodings=[none]", "seeds=1", "to=c")
    words = [word for word in words if word not in BASE[-3:-1]]
    code, _, message = compared(*words, "keep=weights")
    assert code == 0, message
    assert list(Path("c/cells/none-0/checkpoints").iterdir())


def test_minutes_end_at_a_boundary_of_cells(compared):
    code, _, message = compared(*BASE, "to=c", "minutes=1e-6")
    assert code == 0, message
    assert "the minutes are over with 4 of 4 cells left; the same command continues" in message
    assert "minutes" not in Comparison.read(Path("c/results.json")).command
    assert set(list_states("c").values()) == {"waiting"}
    code, _, message = compared(*BASE, "to=c", "minutes=10")
    assert code == 0, message
    assert set(list_states("c").values()) == {"done"}
    assert not Path("c/.until.json").exists()


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b"])
def test_what_is_no_part_is_refused(part, compared):
    code, _, message = compared(*BASE, f"part={part}")
    assert code == 2
    assert "is no part; write part=2/5 for the second of five" in message


def test_a_line_is_refused_if_a_single_digit_changes(tmp_path):
    cell = CellRecord(name="a-0", variant="a", seed=0, test={"test/loss": 0.25})
    append_cell(tmp_path, cell)
    path = tmp_path / CELLS_FILE
    assert read_cells(tmp_path) == {"a-0": cell}
    path.write_text(path.read_text().replace("0.25", "0.26"))
    refused = read_cells(tmp_path)["a-0"]
    assert refused.is_refused
    assert refused.error.startswith("cells.jsonl: a-0: its content does not fit")
    path.write_text('{"name": "a-0"}\n')
    assert "a-0: holds no finished cell" in read_cells(tmp_path)["a-0"].error
    path.write_text('{"name": "a-0"\n')
    with pytest.raises(DataError, match=r"cells\.jsonl: line 1 is no record of a cell"):
        read_cells(tmp_path)


def test_losses_by_position_are_binned_by_powers_of_two():
    losses = [float(number) for number in range(40)]
    means, edges = bin_positions(losses)
    assert edges == (0, 1, 2, 4, 8, 16, 32, 40)
    assert means == (0.0, 1.0, 2.5, 5.5, 11.5, 23.5, 35.5)
    one = CellMeasurement(
        condition=Condition("40", "size", (40,)), position_losses=means, position_edges=edges
    )
    spread = one.list_position_losses()
    assert len(spread) == 40
    assert spread[16:32] == [23.5] * 16
    assert bin_positions(losses[:32]) == (tuple(losses[:32]), ())
    # positions without a target have no weight
    means, _ = bin_positions([None, 4.0, 1.0, *[2.0] * 37], [0, 1, 3, 1, *[1] * 36])
    assert means[:3] == (None, 4.0, 1.25)


def test_a_long_curve_keeps_its_ends():
    curve = [(step, 1 / (step + 1)) for step in range(500)]
    thin = thin_curve(curve)
    assert len(thin) == MAX_VALIDATIONS
    assert (thin[0], thin[-1]) == (curve[0], curve[-1])
    assert thin_curve(curve[:5]) == tuple(curve[:5])


def test_weights_of_the_same_name_are_a_group():
    weights = {"blocks.0.norm": [4, "a"], "blocks.1.norm": [4, "b"], "head": [2, 4, "c"]}
    found = group_weights(weights)
    assert {name: one[0] for name, one in found.items()} == {"blocks.*.norm": 2, "head": 1}
    module = group_weights({"blocks.0.up.weight": [4, "a"], "blocks.0.up.bias": [4, "b"]})
    joined = group_by_module(module)
    assert {name: one[0] for name, one in joined.items()} == {"blocks.*.up": 2}
    assert group_by_module(joined) == joined
    other = group_weights({**weights, "blocks.1.norm": [4, "d"]})
    assert other["blocks.*.norm"][:2] == found["blocks.*.norm"][:2]
    assert other["blocks.*.norm"][2] != found["blocks.*.norm"][2]


def test_a_recipe_follows_from_its_changes():
    base = {"a": {"name": "x", "lr": 1, "deep": {"k": [1, 2]}}, "seed": 0}
    for recipe in (
        base,
        {"a": {"name": "x", "lr": 1.0, "deep": {"k": [1]}}, "seed": 3},
        {"a": {"name": "y", "beta": 2}, "seed": 0},
        {"a": {"name": "x", "lr": 1, "deep": {}}, "seed": 0},
    ):
        assert apply_changes(base, list_changes(base, recipe)) == recipe
    assert list_changes(base, {**base, "seed": 3}) == {"seed": 3}


def test_cells_of_two_machines_merge_and_one_of_them_is_checked(compared, monkeypatch):
    for part, folder in (("1/2", "here"), ("2/2", "there")):
        code, _, message = compared(*BASE, f"to={folder}", f"part={part}")
        assert code == 0, message
    code, out, message = compared("pack", "there", "to=packed")
    assert code == 0, message
    assert out.endswith("packed: 2 finished cells and trials\n")
    assert sorted(read_cells(Path("packed"))) == ["none-1", "rope_mixed-1"]
    assert not Path("packed/cells").exists()
    assert not Path("packed/recipes").exists()

    code, out, message = compared("merge", "here", "packed", "to=both", "--json")
    assert code == 0, message
    assert json.loads(out)["findings"] == []
    assert set(list_states("both").values()) == {"done"}
    whole = read_lasting("both")
    assert compared(*BASE, "to=both")[0] == 0  # nothing is left to train
    assert read_lasting("both") == whole

    # a block that is split over machines is named, and so is a machine's other start
    cell = read_cell("packed", "none-1")
    elsewhere = replace(
        cell.environment, devices={**cell.environment.devices, "processor": "another"}
    )
    write_cells(Path("packed"), [replace(cell, environment=elsewhere)])
    code, out, message = compared("merge", "here", "packed", "to=split")
    assert code == 0, message
    assert "warning: the cells of seed 1 were trained on several machines: none-1 on another" in (
        message
    )
    assert "- split block: the cells of seed 1" in out
    assert "Split block" in Path("split/index.html").read_text()

    # a cell that does not fit is refused by name, and the others are joined
    write_cells(Path("packed"), [replace(cell, start="0" * 64, batch="0" * 8)])
    code, out, message = compared("merge", "both", "packed", "to=begun")
    assert code == 4
    assert "begun has 4 cells; 1 are refused" in message
    assert "packed/cells.jsonl, none-1: did not start as both/cells.jsonl, none-1: " in message
    assert 'batch is "' in message
    assert read_lasting("begun") == whole
    edit_cell("packed", "none-1", minutes=0.0)
    code, out, message = compared("merge", "here", "packed", "to=edited")
    assert code == 4
    assert "edited has 3 cells; 1 are refused" in message
    assert "packed/cells.jsonl: none-1: its content does not fit its SHA-256" in message
    assert list_states("edited")["rope_mixed", 1] == "done"
    assert list_states("edited")["none", 1] == "waiting"
    other = replace(cell, recipe="0" * 64, settings={**cell.settings, "model.dim": 32})
    write_cells(Path("packed"), [other])
    merged = zoo.merge_comparisons(["edited", "packed"], to="edited", verbose=False)
    assert "none-1 is of another recipe: model.dim is 32 there" in str(merged.problem)

    # training a cell again gives every digit; one that was planted is found
    code, out, message = compared("check", "both", "cell=none-1")
    assert code == 0, message
    assert out == "both/cells.jsonl, none-1: equal to the last digit\n"
    changed = {**cell.test, "test/loss": cell.test["test/loss"] + 1e-12}
    rounded = replace(cell, test=changed, measured=(), trained_size=None)
    write_cells(Path("both"), [rounded])
    found = zoo.check_comparison("both", cell="none-1", verbose=False)
    assert found.differences[0].startswith("test test/loss is ")
    assert found.check.verdict == "equal up to rounding"
    monkeypatch.setattr(spot_check, "draw_cell", lambda names, draw: "none-1")
    code, out, message = compared("check", "both", "draw=run-1")
    assert code == 0, message
    assert "none-1: equal up to rounding, drawn by run-1" in out
    assert "fields not equal to the last digit" in out
    assert "equal at the beginning: number of parameters, planned steps, order of samples" in out
    moved = {**cell.test, "test/accuracy": cell.test["test/accuracy"] + 0.01}
    write_cells(Path("both"), [replace(cell, test=moved, measured=(), trained_size=None)])
    code, out, message = compared("check", "both", "draw=run-1")
    assert code == 1
    assert "none-1: different, drawn by run-1" in out
    assert "the processor is of the same kind, so rounding does not explain it" in out
    assert "both/cells.jsonl: none-1 is another run than the recorded one" in message


def write_plan_of(folder, **changes):
    """Write the plan of a comparison of two cells, with changes of its base."""
    base = {"model": {"dim": 16}, "trainer": {"max_steps": 3}, "seed": 0, **changes}
    cells = tuple(PlannedCell(name=f"{name}-0", variant=name, seed=0, recipe=base) for name in "ab")
    Path(folder).mkdir()
    ComparisonPlan(
        zoo_version="",
        created="",
        command="",
        recipe="r",
        base=base,
        machine={},
        axes=(),
        seeds=(0,),
        measure="test/loss",
        better="low",
        training_size=None,
        windows="",
        automatic_threads=False,
        variants={"a": {}, "b": {}},
        cells=cells,
    ).write(Path(folder))


def test_cells_of_another_recipe_are_refused_with_the_difference(tmp_path):
    write_plan_of(tmp_path / "one")
    write_plan_of(tmp_path / "other", model={"dim": 32}, trainer={"max_steps": 4})
    with pytest.raises(DataError) as caught:
        zoo.merge_comparisons([tmp_path / "one", tmp_path / "other"], to=str(tmp_path / "c"))
    text = str(caught.value)
    assert "other: of another recipe than" in text
    assert "model.dim is 32, not 16; trainer.max_steps is 4, not 3" in text
    assert not (tmp_path / "c").exists()
    with pytest.raises(zoo.RecipeError, match="no output folder"):
        zoo.pack_comparison(tmp_path / "one")


def test_a_text_draws_the_cell():
    names = [f"c-{number}" for number in range(50)]
    drawn = {spot_check.draw_cell(names, f"run-{number}") for number in range(30)}
    assert len(drawn) > 15
    assert spot_check.draw_cell(names[::-1], "run-1") == spot_check.draw_cell(names, "run-1")


def make_trial(number, value, **more):
    """Return a trial of study 0 with a validation value."""
    return CellRecord(
        name=f"a-{number}",
        variant="a",
        seed=0,
        study=0,
        trial=number,
        recipe="r",
        start="s",
        value=value,
        mode="max",
        **more,
    )


def test_a_trial_that_was_tested_though_validation_chose_another_is_named(tmp_path):
    write_plan_of(tmp_path / "c")
    plan = ComparisonPlan.read(tmp_path / "c")
    cells = [
        PlannedCell(name=f"a-{n}", variant="a", seed=0, recipe={}, study=0, trial=n)
        for n in range(3)
    ]
    plan = replace(plan, cells=tuple(cells))
    tested = {"test": {"test/accuracy": 0.9}}
    trials = [make_trial(0, 0.5), make_trial(1, 0.7, **tested), make_trial(2, 0.7)]

    def find(trials):
        found = {one.name: one for one in trials}
        return [one.text for one in list_findings(plan, found, ())]

    assert find(trials) == []  # of equal ones the first is tested
    leaked = [make_trial(0, 0.5, **tested), trials[1], trials[2]]
    assert find(leaked) == ["a, study 0: a-0 was tested, though validation chose a-1"]


def test_a_hypothesis_that_was_written_late_is_named():
    late = RecordedHypothesis(text="a > b", written="now", runs_ended=3)
    early = RecordedHypothesis(text="b > a", written="now", runs_ended=0)
    plan = ComparisonPlan.__new__(ComparisonPlan)
    object.__setattr__(plan, "cells", ())
    (found,) = list_findings(plan, {}, (early, late))
    assert found.kind == "late hypothesis"
    assert found.text == "a > b: written after 3 runs had ended, so no prediction"


MODULES = ("norm1", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "norm2", "mlp.up")


def write_deep_run(folder, lengths, depth=48):
    """Write the files of a run of a deep model with many validations and long windows."""
    names = [f"blocks.{n}.{one}" for n in range(depth) for one in (*MODULES, "mlp.down")]
    names += ["embed_tokens", "encoding.fox.0.gate", "norm", "lm_head"]
    weights = {
        f"{name}.{kind}": [64, hash_plain(f"{name}{kind}")]
        for name in names
        for kind in ("weight", "bias")
    }
    metrics = {
        name: 1 / (7 + number)
        for number, name in enumerate(
            ("test/loss", "test/perplexity", "test/accuracy", "test/bits_per_character")
        )
    }
    conditions = [Condition("trained", "trained", (lengths[0],))]
    conditions += [Condition(str(length), "size", (length,)) for length in lengths]
    measured = [
        ConditionResult(
            condition=one,
            metrics=metrics,
            position_losses=tuple(1 / (3 + place) for place in range(one.size[0])),
        ).to_dict()
        for one in conditions
    ]
    environment = {
        "zoo": "0.3.0",
        "packages": dict.fromkeys(("torch", "lightning", "numpy", "kornia"), "12.34.56+cu128"),
        "git": {"commit": "a" * 40, "changed": False},
        "processes": 1,
        "devices": {"processor": "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", "threads": 16},
    }
    folder.mkdir(parents=True)
    start = {"weights": weights, "monitor": "val/loss", "order": "b" * 64, "batch": "c" * 64}
    end = {"metrics": metrics, "steps": 100_000, "minutes": 4.123456789, "memory": 12345678901}
    for name, content in {
        "start.json": {**start, "parameters": 85_000_000, "flops": 10**12, "backends": ["sdpa"]},
        "end.json": {**end, "baselines": {"test/loss": {"bigram": 2.456789}}, "device": "cpu"},
        "environment.json": environment,
        "measured.json": {"trained_size": [lengths[0]], "conditions": measured},
    }.items():
        (folder / name).write_text(json.dumps(content))
    rows = [f"{step},{1 / step},{1 - 1 / step}" for step in range(100, 100_100, 100)]
    (folder / "metrics.csv").write_text("step,val/loss,val/accuracy\n" + "\n".join(rows) + "\n")


@pytest.mark.parametrize("lengths", [(64,), (512, 1024), (512, 1024, 2048, 4096, 8192)])
def test_a_record_of_a_deep_model_in_long_windows_is_kept_by_a_constant_rule(lengths, tmp_path):
    folder = tmp_path / "c"
    write_plan_of(folder)
    plan = replace(ComparisonPlan.read(folder), training_size=(lengths[0],))
    (planned, _) = plan.cells
    write_deep_run(folder / "cells" / planned.name, lengths)
    cell = build_record(plan, folder, planned)
    append_cell(folder, cell)
    assert read_cells(folder) == {cell.name: cell}
    assert (folder / CELLS_FILE).stat().st_size < 8000
    # every metric of every condition is there with all digits; the curve has its ends
    assert [one.condition.name for one in cell.measured] == ["trained", *map(str, lengths)]
    assert all(len(one.metrics) == 4 for one in cell.measured[1:])
    assert cell.test["test/loss"] == 1 / 7
    assert (cell.curve[0][0], cell.curve[-1][0]) == (100, 100_000)
    assert len(cell.curve) == MAX_VALIDATIONS
    for one, length in zip(cell.measured, (lengths[0], *lengths), strict=True):
        assert len(one.list_position_losses()) == length

    # one that format 1 had shortened is equal to it, as far as it goes
    (*first, last) = cell.measured
    shortened = replace(
        cell,
        **dict.fromkeys(("plan", "hypotheses", "initial_weights", "first_losses")),
        measured=(*(replace(one, position_losses=(), position_edges=()) for one in first), last),
        curve=thin_curve(cell.curve, 6),
        test={name: float(f"{value:.9g}") for name, value in cell.test.items()},
    )
    assert list_unequal(cell, shortened) == list_unequal(shortened, cell) == []
    loss = {**shortened.test, "test/loss": 0.142857142}
    assert [one.field for one in list_unequal(cell, replace(shortened, test=loss))] == ["test"]
    # and so is one that was recorded before conditions had baselines
    scored = [
        replace(one, baselines={"test/loss": {"bigram": 2.5}} if one.condition.size else {})
        for one in cell.measured
    ]
    later = replace(cell, measured=tuple(scored))
    assert list_unequal(cell, later) == list_unequal(later, cell) == []
    (*first, last) = later.measured
    last = replace(last, baselines={"test/loss": {"bigram": 2.25}})
    changed = replace(later, measured=(*first, last))
    assert [str(one) for one in list_unequal(later, changed)] == [
        f"measured[{len(lengths)}] baselines test/loss bigram is 2.5 and 2.25"
    ]
