"""Planted edits of a record: what files can tell is refused by name; the rest only retraining tells."""

import json
from dataclasses import replace

import comparisons
import pytest

from zoo.comparison.digests import hash_plain, seal
from zoo.comparison.hypotheses import HYPOTHESES, write_hypotheses
from zoo.comparison.merge import PackOptions, pack
from zoo.comparison.outputs import read_comparison
from zoo.comparison.plan import PLAN, ComparisonPlan, PlannedCell, StudyDesign, list_changes
from zoo.comparison.record import CellRecord, Environment, hash_hypotheses, hash_plan, hash_recipe
from zoo.comparison.record_file import CELLS_FILE, check_cells, write_cells
from zoo.comparison.results import CellMeasurement, RecordedHypothesis, SearchedKey
from zoo.errors import DataError
from zoo.run.conditions import Condition

VARIANTS = {"fox": 0.9, "rope": 0.8, "none": 0.5}
SEEDS = (100, 101, 102, 103)
SIZE = Condition("64", "size", (64,))
CHANGED = "does not fit its SHA-256"


def make_plan():
    """A comparison of three encodings in four studies of two trials."""
    base = {
        "seed": 0,
        "model": {"encoding": [{"name": "rope", "base": 10000.0}], "dropout": 0.0},
        "optim": {"lr": 0.01},
    }
    cells = tuple(
        PlannedCell(
            name=f"{name}-{study}-{trial}",
            variant=name,
            seed=seed,
            study=study,
            trial=trial,
            recipe={
                **base,
                "seed": seed,
                "model": {**base["model"], "encoding": [{"name": name}]},
                "optim": {"lr": 0.01 / (1 + trial + study)},
            },
        )
        for study, seed in enumerate(SEEDS)
        for name in VARIANTS
        for trial in range(2)
    )
    return ComparisonPlan(
        zoo_version="",
        created="2026-01-01 00:00 UTC",
        command="zoo compare",
        recipe="r",
        base=base,
        machine={"threads": 1},
        seeds=SEEDS,
        measure="test/accuracy",
        better="high",
        training_size=(64,),
        windows="",
        automatic_threads=False,
        variants={name: {"model.encoding": name} for name in VARIANTS},
        axes=(
            replace(
                comparisons.make_axis("model.encoding", "encoding", VARIANTS),
                settings=tuple([name] for name in VARIANTS),
            ),
        ),
        cells=cells,
        design=StudyDesign(
            budget=2,
            keys=(SearchedKey(key="optim.lr", searched="[0.001,0.1,log]"),),
            effective=dict.fromkeys(VARIANTS, ("optim.lr",)),
        ),
    )


def plant(folder):
    """Write plan, hypotheses and cells as if they had been trained."""
    folder.mkdir()
    plan = make_plan()
    plan.write(folder)
    hypotheses = [
        RecordedHypothesis(text=text, written="2026-01-01 00:00 UTC", runs_ended=0)
        for text in ("fox > rope", "rope > none by 0.1")
    ]
    write_hypotheses(hypotheses, folder)
    cells = []
    for one in plan.cells:
        value = VARIANTS[one.variant] + 0.001 * one.study - 0.1 * one.trial
        test = {} if one.trial else {"test/accuracy": value, "test/loss": 1 - value}
        digest = hash_plain([one.seed, one.recipe["model"]])
        measured = CellMeasurement(condition=SIZE, metrics=test)
        cells.append(
            CellRecord(
                name=one.name,
                variant=one.variant,
                seed=one.seed,
                study=one.study,
                trial=one.trial,
                settings=list_changes(plan.base, one.recipe),
                recipe=hash_recipe(plan, one),
                plan=hash_plan(plan),
                hypotheses=hash_hypotheses(hypotheses),
                start=digest,
                initial_weights=digest,
                first_losses=(1.0, 0.9),
                weights={"head": (1, digest[:8], digest[8:16])},
                order=hash_plain(one.seed)[:8],
                batch=hash_plain(one.seed)[:8],
                environment=Environment(devices={"processor": "a processor"}),
                monitor="val/accuracy",
                criterion="val/accuracy",
                mode="max",
                value=value,
                test=test,
                measured=(measured,) if test else (),
                trained_size=(64,),
                curve=((10, value / 2), (20, value)),
                minutes=1.0,
            )
        )
    write_cells(folder, cells)
    return folder


class Files:
    """The files of a record as plain data, without their SHA-256."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = [json.loads(line) for line in (folder / CELLS_FILE).read_text().splitlines()]
        self.plan = json.loads((folder / PLAN).read_text())
        self.hypotheses = json.loads((folder / HYPOTHESES).read_text())

    def find(self, name):
        """Return the line of a cell."""
        return next(line for line in self.lines if line["name"] == name)

    def find_planned(self, name):
        """Return a cell of the plan."""
        return next(cell for cell in self.plan["cells"] if cell["name"] == name)

    def copy(self, source, target, *fields):
        """Copy a line over that of another cell, which keeps its name and the named fields."""
        kept = {
            key: self.find(target)[key] for key in ("name", *fields) if key in self.find(target)
        }
        number = self.lines.index(self.find(target))
        self.lines[number] = {**self.find(source), **kept}

    def write(self, *, is_renewed):
        """Write the files, and renew their SHA-256."""

        def finish(content):
            entries = {key: value for key, value in content.items() if key != "sha256"}
            return seal(entries) if is_renewed else content

        lines = [json.dumps(finish(line)) for line in self.lines]
        (self.folder / CELLS_FILE).write_text("".join(f"{line}\n" for line in lines))
        (self.folder / PLAN).write_text(json.dumps(finish(self.plan)))
        if self.hypotheses is not None:
            (self.folder / HYPOTHESES).write_text(json.dumps(finish(self.hypotheses)))
        else:
            (self.folder / HYPOTHESES).unlink()


def list_doubts(folder):
    """Return what the one check says of a record: refusals, and reasons to doubt it."""
    try:
        return [one.text for one in read_comparison(folder).findings]
    except DataError as error:
        return [str(error)]


def edit_line(line="fox-0-0", **changes):
    """Return an edit that changes fields of a line."""
    return lambda files: files.find(line).update(changes)


def edit_plan(**changes):
    """Return an edit that changes fields of the plan."""
    return lambda files: files.plan.update(changes)


def edit_hypothesis(**changes):
    """Return an edit that changes fields of the first hypothesis."""
    return lambda files: files.hypotheses["hypotheses"][0].update(changes)


def score_test(files):
    files.find("rope-0-0")["test"]["test/accuracy"] = 0.99


def score_value(files):
    files.find("rope-0-1")["value"] = 0.99


def score_value_that_chooses(files):
    line = files.find("rope-0-1")
    line["value"], line["curve"] = 0.99, [[10, 0.4], [20, 0.99]]


def rename_line(files):
    files.find("fox-0-0")["name"] = "fox-9-0"


def change_setting(files):
    files.find("fox-0-0")["settings"]["optim.lr"] = 0.5


def change_base(files):
    files.plan["base"]["model"]["dropout"] = 0.5


def change_planned_setting(files):
    files.find_planned("fox-0-0")["settings"]["optim.lr"] = 0.5


def change_planned_seed(files):
    files.find_planned("fox-0-0")["seed"] = 7


def swap_planned_variants(files):
    one, other = files.find_planned("fox-0-0"), files.find_planned("rope-0-0")
    one["variant"], other["variant"] = other["variant"], one["variant"]


def swap_planned_settings(files):
    one, other = files.find_planned("fox-0-0"), files.find_planned("rope-0-0")
    one["settings"], other["settings"] = other["settings"], one["settings"]


def swap_labels(files):
    variants = files.plan["variants"]
    variants["fox"], variants["rope"] = variants["rope"], variants["fox"]


def drop_planned(files):
    files.plan["cells"].remove(files.find_planned("fox-0-1"))


def drop_planned_study(files):
    files.plan["cells"] = [one for one in files.plan["cells"] if one["study"] != 1]
    files.lines = [line for line in files.lines if line.get("study") != 1]


def repeat_planned(files):
    files.plan["cells"].append(files.find_planned("fox-0-0"))


def change_budget(files):
    files.plan["design"]["budget"] = 20


def change_range(files):
    files.plan["design"]["keys"][0]["searched"] = "[1e-6,1,log]"


def copy_whole(files):
    files.copy("rope-0-0", "fox-0-0")


def copy_with_variant(files):
    files.copy("rope-0-0", "fox-0-0", "variant")


def copy_with_settings(files):
    files.copy("rope-0-0", "fox-0-0", "variant", "settings")


def copy_with_recipe(files):
    files.copy("rope-0-0", "fox-0-0", "variant", "recipe")


def copy_over_seed(files):
    files.copy("fox-0-0", "fox-1-0", "seed", "study")


def copy_over_seed_with_recipe(files):
    files.copy("fox-0-0", "fox-1-0", "seed", "study", "settings", "recipe")


def copy_over_trial(files):
    files.copy("fox-0-0", "fox-0-1")


def swap_variants(files):
    one, other = files.find("rope-0-0"), files.find("fox-0-0")
    one["name"], other["name"] = other["name"], one["name"]


def swap_seeds(files):
    one, other = files.find("rope-0-0"), files.find("rope-1-0")
    for key in ("name", "seed", "study"):
        one[key], other[key] = other.get(key), one.get(key)


def repeat_line(files):
    files.lines.append({**files.find("fox-0-0"), "test": {"test/accuracy": 0.99}})


def delete_study_line(files):
    files.lines.remove(files.find("rope-1-0"))


def delete_study(files):
    files.lines = [line for line in files.lines if line.get("study") != 1]


def delete_hypothesis(files):
    del files.hypotheses["hypotheses"][0]


def delete_hypotheses(files):
    files.hypotheses = None


def add_hypothesis(files):
    files.hypotheses["hypotheses"].append(
        {"text": "fox > none", "written": "2025-01-01 00:00 UTC", "runs_ended": 0, "withdrawn": ""}
    )


TOLD = {
    "a score, not the one at the same size": (score_test, "rope-0-0 has other metrics"),
    "a validation value": (score_value, "rope-0-1 states val/accuracy 0.99"),
    "a validation value that would choose": (
        score_value_that_chooses,
        "rope-0-0 was tested, though",
    ),
    "a test of a trial": (edit_line("rope-0-1", test={"test/accuracy": 0.9}), "rope-0-1"),
    "a setting": (change_setting, "fox-0-0 has settings that do not give"),
    "a setting and its digest": (
        edit_line(recipe="0" * 64, settings={"optim.lr": 0.5}),
        "fox-0-0 is of another recipe: seed is null there",
    ),
    "no settings": (edit_line(settings={}), "fox-0-0 has settings that do not give"),
    "settings of no recipe": (edit_line(settings={"a.b": 1}), "fox-0-0 has settings"),
    "a digest of settings": (edit_line(recipe="0" * 64), "fox-0-0 is of another recipe"),
    "a seed": (edit_line(seed=7), "fox-0-0 states seed 7, the plan 100"),
    "a study": (edit_line(study=2), "fox-0-0 states study 2, the plan 0"),
    "a trial": (edit_line(trial=1), "fox-0-0 states trial 1, the plan 0"),
    "a variant": (edit_line(variant="rope"), 'fox-0-0 states variant "rope", the plan "fox"'),
    "a name that is free": (rename_line, "lacks fox-9-0, which was trained"),
    "a digest of the plan": (edit_line(plan="0" * 64), "fox-0-0 was trained under another plan"),
    "digests of hypotheses": (edit_line(hypotheses=["0" * 64]), "fox-0-0 was trained when a hypo"),
    "a plan's base": (change_base, "fox-0-0 is of another recipe"),
    "a plan's setting": (change_planned_setting, "fox-0-0 is of another recipe: optim.lr"),
    "a plan's seed": (change_planned_seed, "fox-0-0 has seed 7, its recipe 100"),
    "a plan's seeds": (edit_plan(seeds=[100, 101, 102, 7]), "3: 103, not 0: 100"),
    "a plan's measure": (
        edit_plan(measure="test/loss", better="low"),
        "its trials were judged by val/accuracy",
    ),
    "a plan's direction": (edit_plan(better="low"), "the low values are better"),
    "a plan's variants": (
        swap_planned_variants,
        "fox-0-0 is of rope, and has model.encoding of fox",
    ),
    "a plan's swapped cells": (
        swap_planned_settings,
        "fox-0-0 is of fox, and has model.encoding of",
    ),
    "a plan's labels": (swap_labels, "fox-0-0 is of rope, and has model.encoding of fox"),
    "a cell left out of the plan": (drop_planned, "lacks fox-0-1, which was trained"),
    "a study left out of all": (drop_planned_study, "its studies have seeds 0: 100, 2: 102"),
    "a cell twice in the plan": (repeat_planned, "has several cells fox-0-0"),
    "a budget": (change_budget, "has a budget of 20, and 2 trials in a study"),
    "a searched range": (change_range, "was trained under another plan"),
    "a copy over another variant": (copy_whole, 'fox-0-0 states variant "rope"'),
    "a copy with its variant": (copy_with_variant, "fox-0-0 is of another recipe: model.encoding"),
    "a copy with its settings": (copy_with_settings, "fox-0-0 is of another recipe"),
    "a copy with its digest": (copy_with_recipe, "fox-0-0 has settings that do not give"),
    "a copy over another seed": (copy_over_seed, "fox-1-0 is of another recipe"),
    "a copy over a seed, all renewed": (
        copy_over_seed_with_recipe,
        "exactly as fox-0-0, which has",
    ),
    "a copy over another trial": (copy_over_trial, "fox-0-1 states trial 0, the plan 1"),
    "swapped variants": (swap_variants, 'fox-0-0 states variant "rope"'),
    "swapped seeds": (swap_seeds, "rope-1-0 is of another recipe: seed is 100 there"),
    "a second line": (repeat_line, "fox-0-0 has two lines"),
    "a deleted line": (delete_study_line, "rope: later studies are done, but not 1"),
    "a deleted study": (delete_study, "fox, rope and none: later studies are done, but not 1"),
    "a hypothesis's text": (edit_hypothesis(text="none > rope"), "its text or time was changed"),
    "a hypothesis's time": (edit_hypothesis(written="2025-01-01 00:00 UTC"), "its text or time"),
    "a deleted hypothesis": (delete_hypothesis, "hypotheses.json: fox-0-0, "),
    "deleted hypotheses": (delete_hypotheses, "hypotheses.json: fox-0-0, "),
    "a later hypothesis": (add_hypothesis, "fox > none: written after 24 runs had ended"),
}
"""{an edit that the files tell: (the edit, what names it though all SHA-256 are renewed)}"""


def score_consistently(files):
    line = files.find("rope-0-0")
    line["test"]["test/accuracy"] = 0.99
    line["measured"][0]["metrics"]["test/accuracy"] = 0.99


def move_validations(files):
    line = files.find("rope-0-0")
    line["value"], line["curve"] = 0.81, [[10, 0.4], [20, 0.81]]


def copy_consistently(files):
    fields = ("variant", "settings", "recipe", "start", "initial_weights", "weights")
    files.copy("rope-0-0", "fox-0-0", *fields)


def drop_last_study(files):
    files.plan["cells"] = [one for one in files.plan["cells"] if one["study"] != 3]
    files.plan["seeds"] = files.plan["seeds"][:3]
    files.lines = [line for line in files.lines if line.get("study") != 3]


def drop_variant(files):
    files.plan["cells"] = [one for one in files.plan["cells"] if one["variant"] != "none"]
    del files.plan["variants"]["none"]
    files.lines = [line for line in files.lines if line["variant"] != "none"]


def forget_digests(files):
    for line in files.lines:
        line["plan"] = line["hypotheses"] = None
    del files.hypotheses["hypotheses"][0]


UNTOLD = {
    "a score, wherever it stands": score_consistently,
    "a validation value with its curve": move_validations,
    "a copy with all that a cell states": copy_consistently,
    "first losses": edit_line(first_losses=[0.5, 0.4]),
    "initial weights": edit_line(initial_weights="0" * 64),
    "a processor": edit_line(environment={"devices": {"processor": "another"}}),
    "minutes": edit_line(minutes=0.1),
    "the last study, left out of all": drop_last_study,
    "a variant, left out of all": drop_variant,
    "digests of all cells, and a hypothesis": forget_digests,
}
"""{a forgery that no file tells: retraining does, or the history of the repository}"""


def test_a_planted_record_has_no_doubts(tmp_path):
    folder = plant(tmp_path / "c")
    assert list_doubts(folder) == []
    assert len(check_cells(ComparisonPlan.read(folder), folder)) == 24
    Files(folder).write(is_renewed=True)
    assert list_doubts(folder) == []


@pytest.mark.parametrize("name", TOLD)
def test_an_edit_is_refused_by_name_whether_its_hash_is_renewed_or_not(name, tmp_path):
    edit, expected = TOLD[name]
    for is_renewed in (True, False):
        folder = plant(tmp_path / f"renewed-{is_renewed}")
        files = Files(folder)
        edit(files)
        files.write(is_renewed=is_renewed)
        doubts = list_doubts(folder)
        assert any(expected in one for one in doubts) or (
            not is_renewed and any(CHANGED in one for one in doubts)
        ), doubts


@pytest.mark.parametrize("name", UNTOLD)
def test_a_consistent_forgery_is_told_by_retraining_or_by_the_history_only(name, tmp_path):
    for is_renewed in (True, False):
        folder = plant(tmp_path / f"renewed-{is_renewed}")
        files = Files(folder)
        UNTOLD[name](files)
        files.write(is_renewed=is_renewed)
        doubts = [one for one in list_doubts(folder) if "several machines" not in one]
        assert any(CHANGED in one for one in doubts) != is_renewed, doubts


@pytest.mark.parametrize("name", ["a copy with its variant", "a hypothesis's text"])
def test_every_reader_of_a_record_calls_the_check(name, tmp_path, zoo, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zoo.comparison.figures.save_figures", lambda *_: [])
    monkeypatch.setattr("zoo.comparison.page.comparison_page.render", lambda _: "")
    folder, whole = plant(tmp_path / "c"), plant(tmp_path / "whole")
    edit, expected = TOLD[name]
    files = Files(folder)
    edit(files)
    files.write(is_renewed=True)
    for words in (
        ("rebuild", folder),
        ("pack", folder, "to=packed"),
        ("check", folder),
        ("merge", whole, folder, "to=merged"),
    ):
        code, _, message = zoo("compare", *words)
        assert (code, expected in message) == (4, True), (words, message)
    with pytest.raises(DataError, match=expected[:20]):
        pack(folder, PackOptions(to=str(tmp_path / "again")))
