"""A file of a comparison that is damaged: each command that reads it names it, and nothing is dropped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest
from damages import DAMAGES

from zoo.comparison import cell, digests, record
from zoo.comparison.cell_files import build_record, find_cell, is_done, keep_finished, read_run
from zoo.comparison.digests import EDITED
from zoo.comparison.outputs import collect_results, describe_comparison
from zoo.comparison.plan import CELLS, PLAN, RECIPES, ComparisonPlan, PlannedCell
from zoo.comparison.record_file import CELLS_FILE, append_cell, read_cells, write_cells
from zoo.launch.executor import make_run_dir, write_state
from zoo.run.conditions import Condition

LOSS = "test/loss"
RUN = ("start.json", "environment.json", "measured.json", "metrics.csv", "cell.json")
TRAINED = Condition("trained", "trained", (64,))


def make_plan(seeds=(0, 1, 2)):
    """A comparison of two encodings, each evaluated at a longer length."""
    recipe = {
        "trainer": {"max_epochs": 1, "max_steps": None},
        "evaluate": {"stride": None, "lengths": [128]},
    }
    names = ("none", "rope")
    return ComparisonPlan(
        zoo_version="",
        created="",
        command="",
        recipe="r",
        base=recipe,
        machine={"threads": 1},
        seeds=seeds,
        measure=LOSS,
        better="low",
        training_size=(64,),
        windows="",
        automatic_threads=True,
        variants={name: {"model.encoding": name} for name in names},
        axes=(comparisons.make_axis("model.encoding", "encoding", names),),
        cells=tuple(
            PlannedCell(name=f"{name}-{seed}", variant=name, seed=seed, recipe=recipe)
            for name in names
            for seed in seeds
        ),
    )


def fill_run(run, value):
    """Write the files of a run that is complete."""
    metrics = {LOSS: value}
    conditions = [TRAINED, Condition("128", "size", (128,))]
    measured = [{**one.to_dict(), "metrics": metrics} for one in conditions]
    for name, content in {
        "start.json": {"parameters": 3, "monitor": "val/loss", "planned_steps": 2},
        "end.json": {"metrics": metrics, "steps": 2, "baselines": {}},
        "environment.json": {"zoo": "0.3.0"},
        "measured.json": {"trained_size": [64], "conditions": measured},
    }.items():
        (run / name).write_text(json.dumps(content))
    (run / "metrics.csv").write_text("step,epoch,val/loss\n0,0,2.0\n1,0,1.5\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A comparison whose cells are all done, in run directories; its pages have no pictures."""
    monkeypatch.setattr("zoo.comparison.figures.save_figures", lambda *_: [])
    monkeypatch.setattr("zoo.comparison.page.comparison_page.render", lambda _: "")
    monkeypatch.setattr("zoo.comparison.plan.from_plain", lambda *_, **__: pytest.fail("no recipe"))
    folder = tmp_path / "c"
    plan = make_plan()
    folder.mkdir()
    plan.write(folder)
    for number, one in enumerate(plan.cells):
        run = make_run_dir(folder / CELLS / one.name)
        fill_run(run, 1.0 + number / 10)
        write_state(run, "done")
    return folder


def rebuild(zoo, folder):
    code, out, message = zoo("compare", "rebuild", folder)
    assert "Traceback" not in message
    return code, out, message


def list_states(folder):
    found = collect_results(ComparisonPlan.read(folder), folder)
    return [one.state for one in found.cells]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("end.json", damage) for damage in DAMAGES),
        *((name, damage) for name in RUN for damage in ("empty", "another type", "a FIFO")),
    ],
)
def test_a_cell_with_a_damaged_file_counts_as_failed_and_is_named(name, damage, folder, zoo):
    assert list_states(folder) == ["done"] * 6
    DAMAGES[damage](folder / CELLS / "rope-1" / name)
    code, out, message = rebuild(zoo, folder)
    assert code == 4
    for text in (out, message):
        assert f"rope-1/{name}: " in text
    assert list_states(folder) == [*["done"] * 4, "failed", "done"]
    plan = ComparisonPlan.read(folder)
    assert not is_done(plan, folder, plan.cells[4])
    # in no mean, and no ground for another command to go on without it
    code, _, message = zoo("compare", "pack", folder, "to=packed")
    assert (code, f"rope-1/{name}: " in message) == (4, True)
    assert not Path("packed").exists()


@pytest.mark.parametrize("name", ["start.json", "end.json", "measured.json"])
def test_a_cell_that_lacks_a_file_of_its_results_is_not_done(name, folder, zoo):
    (folder / CELLS / "rope-1" / name).unlink()
    code, _, message = rebuild(zoo, folder)
    assert code == 4
    assert f"rope-1/{name}: there is no such file, though the cell is done" in message


def record_all(folder):
    """Write the records of all cells of a comparison, and return its plan."""
    plan = ComparisonPlan.read(folder)
    for planned in plan.cells:
        append_cell(folder, build_record(plan, folder, planned))
    return plan


@pytest.mark.parametrize("damage", ["no text", "another type", "a folder", "a FIFO"])
def test_a_damaged_file_of_cells_is_named_by_each_command(damage, folder, zoo):
    record_all(folder)
    DAMAGES[damage](folder / CELLS_FILE)
    for words in (
        ("rebuild", folder),
        ("pack", folder, "to=packed"),
        ("check", folder),
        ("merge", folder, "to=merged"),
    ):
        code, _, message = zoo("compare", *words)
        assert (code, "cells.jsonl: " in message) == (4, True), words


def test_a_line_that_was_changed_is_named_by_each_command(folder, zoo):
    plan = record_all(folder)
    comparisons.edit_cell(folder, "rope-1", minutes=1.0)
    for words in (
        ("rebuild", folder),
        ("pack", folder, "to=packed"),
        ("check", folder),
        ("merge", folder, "to=merged"),
    ):
        code, _, message = zoo("compare", *words)
        assert (code, "cells.jsonl: rope-1: its content does not fit" in message) == (4, True)
    # a process of the cell is not started, since the file has what it would train
    assert is_done(plan, folder, plan.cells[4])


def test_a_last_line_that_was_cut_off_is_left_out_and_named(folder, zoo, caplog):
    plan = record_all(folder)
    path = folder / CELLS_FILE
    whole = path.read_bytes()
    # the run of the last cell is gone, so that its line was all there was
    shutil.rmtree(folder / CELLS / "rope-2")
    for length in (1, 20, 300):
        path.write_bytes(whole[:-length])
        caplog.clear()
        assert "rope-2" not in read_cells(folder)
        assert f"{path}: the last line was cut off while it was written" in caplog.text
        assert list_states(folder) == [*["done"] * 5, "waiting"]
    # the next cell gets a line of its own
    append_cell(folder, replace(build_record(plan, folder, plan.cells[4]), name="rope-2"))
    assert {*read_cells(folder)} == {planned.name for planned in plan.cells}
    assert path.read_bytes().count(b"\n") == 6


def test_lines_of_two_branches_are_joined(folder):
    plan = record_all(folder)
    lines = (folder / CELLS_FILE).read_text().splitlines(keepends=True)
    # the same cell, trained on two machines
    cells = read_cells(folder)
    other = replace(cells["rope-1"], minutes=9.0)
    append_cell(folder, other)
    assert read_cells(folder) == cells
    append_cell(folder, replace(other, test={LOSS: 2.0}))
    found = find_cell(plan, folder, plan.cells[4])
    assert found.is_refused
    assert "rope-1 has two lines: test test/loss is 1.4 and 2.0; delete one of them" in found.error
    # in any order
    (folder / CELLS_FILE).write_text("".join(reversed(lines)))
    assert read_cells(folder) == cells


def test_a_comparison_with_a_file_for_each_cell_is_read(folder):
    """zoo 0.3 wrote such files, of format 1, without digests of the plan and of hypotheses."""
    plan = record_all(folder)
    cells = read_cells(folder)
    before = describe_comparison(collect_results(plan, folder))
    (folder / CELLS_FILE).unlink()
    shutil.rmtree(folder / CELLS)
    for name, finished in cells.items():
        plain = {key: one for key, one in finished.to_dict().items() if key not in record.DIGESTS}
        plain = {**plain, "format": 1}
        plain["sha256"] = digests.hash_plain({k: v for k, v in plain.items() if k != "sha256"})
        path = folder / CELLS / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(plain))
    assert describe_comparison(collect_results(plan, folder)) == before
    unknown = dict.fromkeys(record.DIGESTS)
    assert read_cells(folder) == {name: replace(one, **unknown) for name, one in cells.items()}
    path.write_text(path.read_text().replace('"steps": 2', '"steps": 3'))
    assert "cells/rope-2.json: its content does not fit" in read_cells(folder)["rope-2"].error
    # what is written again is in the file of all cells
    write_cells(folder, [one for one in read_cells(folder).values() if not one.is_refused])
    assert [one.name for one in (folder / CELLS).glob("*.json")] == ["rope-2.json"]
    assert (folder / CELLS_FILE).read_text().count('"plan":null') == 5


def test_a_damaged_end_beside_the_record_of_a_cell_is_set_aside(folder, caplog):
    plan = ComparisonPlan.read(folder)
    planned = plan.cells[4]
    append_cell(folder, build_record(plan, folder, planned))
    end = folder / CELLS / planned.name / "end.json"
    end.write_text("{garbage")
    keep_finished(plan, folder, planned, keeps_weights=True)
    assert not end.exists()
    assert end.with_name("end.json.damaged").read_text() == "{garbage"
    assert "since the record of the cell has the results" in caplog.text


def test_a_number_that_is_none_is_an_edit(folder):
    plan = ComparisonPlan.read(folder)
    append_cell(folder, build_record(plan, folder, plan.cells[4]))
    path = folder / CELLS_FILE
    path.write_text(path.read_text().replace('"seed":1', '"seed":NaN'))
    assert EDITED in find_cell(plan, folder, plan.cells[4]).error


@pytest.mark.parametrize("damage", ["empty", "truncated", "no text", "nested", "a FIFO"])
def test_a_damaged_plan_or_result_is_named_by_each_command(damage, folder, zoo):
    assert rebuild(zoo, folder)[0] == 0
    DAMAGES[damage](folder / "results.json")
    code, _, message = zoo("compare", "rank", folder, folder)
    assert (code, f"{folder}" in message) == (4, True)
    (folder / "hypotheses.json").write_text('{"hypotheses": []}')
    DAMAGES[damage](folder / "hypotheses.json")
    code, _, message = rebuild(zoo, folder)
    assert (code, "hypotheses.json: holds no hypotheses" in message) == (4, True)
    DAMAGES[damage](folder / PLAN)
    for words in (
        ("rebuild", folder),
        ("merge", folder, "to=m"),
        ("pack", folder, "to=p"),
        ("check", folder),
    ):
        code, _, message = zoo("compare", *words)
        assert (code, str(folder) in message) == (4, True), words


def test_a_cell_outside_its_comparison_is_refused(folder, zoo):
    plain = json.loads((folder / PLAN).read_text())
    del plain["sha256"]
    for name in ("../../elsewhere", "/etc", "..", "", 3):
        plain["cells"][0]["name"] = name
        (folder / PLAN).write_text(json.dumps(plain))
        code, _, message = rebuild(zoo, folder)
        assert (code, "is no name of a cell" in message) == (4, True)


def test_seeds_without_any_value_are_named_in_a_ranking(folder, zoo):
    plan = make_plan((0, 1, 2, 3))
    plan.write(folder)
    for number, one in enumerate(plan.cells):
        run = make_run_dir(folder / CELLS / one.name)
        fill_run(run, 1.0 + number / 10)
        write_state(run, "done")
    for name in ("none-3", "rope-3"):
        (folder / CELLS / name / "end.json").write_text("{")
    assert rebuild(zoo, folder)[0] == 4
    code, out, message = zoo("compare", "rank", folder, folder / "results.json", "to=ranked")
    assert code == 0, message
    assert "seeds 3: no variant has a value" in out


def test_the_process_of_a_cell_with_damaged_results_fails_before_its_training(
    tmp_path, monkeypatch
):
    run = make_run_dir(tmp_path / CELLS / "rope-1")
    fill_run(run, 1.0)
    (run / "end.json").write_text("")
    monkeypatch.setattr(cell, "fit", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(cell.DataError, match=r"end\.json: not as zoo writes it, it is empty"):
        cell.train_cell(tmp_path / RECIPES / "rope-1.yaml", run, is_tested=True)
    (tmp_path / cell.DEADLINE).write_text("{}")
    with pytest.raises(cell.DataError, match="holds no time"):
        cell.is_time_over(tmp_path)


def test_files_of_a_trial_that_is_done_are_needed_as_far_as_it_has_come(folder):
    plan = ComparisonPlan.read(folder)
    planned = replace(plan.cells[0], study=0, trial=0)
    run = folder / CELLS / planned.name
    assert "trial.json: there is no such file" in find_cell(plan, folder, planned).error
    (run / "trial.json").write_text('{"monitor": "val/loss", "mode": "min", "best": 1.0}')
    assert find_cell(plan, folder, planned).state == "done"
    (run / "end.json").unlink()
    assert "end.json: there is no such file" in find_cell(plan, folder, planned).error
    (run / "untested").touch()
    assert find_cell(plan, folder, planned).state == "done"
    (run / "trial.json").write_text('{"best": "high"}')
    assert "trial.json: not as zoo writes it: best" in find_cell(plan, folder, planned).error
    (run / "trial.json").unlink()
    assert read_run(run).test == {}
