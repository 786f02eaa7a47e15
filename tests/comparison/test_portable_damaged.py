"""A file of a comparison that is damaged: each command that reads it names it, and nothing is dropped."""

import json
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest
from damages import DAMAGES

from zoo.comparison import cell, record
from zoo.comparison.cell_files import build_record, find_cell, is_done, keep_finished, read_run
from zoo.comparison.outputs import collect_results
from zoo.comparison.plan import CELLS, PLAN, RECIPES, ComparisonPlan, PlannedCell
from zoo.comparison.record import locate_portable
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


@pytest.mark.parametrize("damage", ["empty", "truncated", "another type", "a folder", "a FIFO"])
def test_a_damaged_portable_cell_is_named_by_each_command(damage, folder, zoo):
    plan = ComparisonPlan.read(folder)
    for one in plan.cells:
        build_record(plan, folder, one).write(locate_portable(folder, one.name))
    path = locate_portable(folder, "rope-1")
    DAMAGES[damage](path)
    code, _, message = rebuild(zoo, folder)
    assert (code, "rope-1.json: " in message) == (4, True)
    for words in (("pack", folder, "to=packed"), ("check", folder), ("merge", folder, "to=merged")):
        code, _, message = zoo("compare", *words)
        assert (code, "rope-1.json: " in message) == (4, True), words
    # a process of the cell is not started, since the file has what it would train
    assert is_done(plan, folder, plan.cells[4])


def test_a_damaged_end_beside_a_portable_cell_is_set_aside(folder, caplog):
    plan = ComparisonPlan.read(folder)
    planned = plan.cells[4]
    build_record(plan, folder, planned).write(locate_portable(folder, planned.name))
    end = folder / CELLS / planned.name / "end.json"
    end.write_text("{garbage")
    keep_finished(plan, folder, planned, keeps_weights=True)
    assert not end.exists()
    assert end.with_name("end.json.damaged").read_text() == "{garbage"
    assert "since rope-1.json has the results" in caplog.text


def test_a_number_that_is_none_is_an_edit(folder):
    plan = ComparisonPlan.read(folder)
    path = locate_portable(folder, "rope-1")
    build_record(plan, folder, plan.cells[4]).write(path)
    path.write_text(path.read_text().replace('"seed": 1', '"seed": NaN'))
    assert record.EDITED in find_cell(plan, folder, plan.cells[4]).error


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
