"""Where metrics go beside metrics.csv, and what is told of a tracker that is not there."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from lightning.pytorch.loggers import mlflow as of_mlflow
from lightning.pytorch.loggers import wandb as of_wandb
from training import fit

import zoo
from zoo import registry
from zoo.cli import main
from zoo.comparison import cell
from zoo.config.command_line import parse_overrides
from zoo.errors import RecipeError
from zoo.options.signature import options
from zoo.packages import format_pip
from zoo.run import loggers


@pytest.fixture
def make_loggers(tiny):
    """make_loggers(name) -> the loggers of a run, each of which has taken one metric."""

    def make(*names):
        recipe = zoo.load_recipe(
            "vit_none", parse_overrides([*tiny[:3], f"trainer.logger=[{','.join(names)}]"])
        )
        found = loggers.build_loggers(recipe, Path("runs", "one"), 0)
        for logger in found[1:]:
            logger.log_metrics({"train/loss": 2.0}, 3)
        return recipe, found

    Path("runs", "one").mkdir(parents=True)
    return make


class Run:
    """What W&B and MLflow are told, in their place."""

    def __init__(self):
        self.logged = []
        self.config = SimpleNamespace(update=lambda given, **_: self.logged.append(given))

    def log(self, metrics, **_):
        self.logged.append(dict(metrics))

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location):
        self.logged.append(name)
        return "1"

    def create_run(self, experiment_id, tags):
        self.tags = tags
        return SimpleNamespace(info=SimpleNamespace(run_id="7", experiment_id=experiment_id))

    def log_batch(self, run_id, params=(), metrics=(), **_):
        self.logged.append([(one.key, one.value) for one in (*params, *metrics)])

    def set_terminated(self, *_):
        pass


def module(name, **contents):
    make_loggers = ModuleType(name)
    vars(make_loggers).update(contents)
    return make_loggers


@pytest.fixture
def wandb(monkeypatch):
    run, given = Run(), {}
    for name in (
        "WANDB_MODE",
        "WANDB_PROJECT",
    ):  # set first, so that what Lightning sets is gone after the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(of_wandb, "_WANDB_AVAILABLE", True)
    top = module("wandb", run=None, init=lambda **options: (given.update(options), run)[1])
    for fake in (
        top,
        module("wandb.sdk"),
        module("wandb.sdk.lib", RunDisabled=int),
        module("wandb.wandb_run", Run=int),
    ):
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return run, given


@pytest.fixture
def mlflow(monkeypatch):
    run, given = Run(), []
    entity = lambda **fields: SimpleNamespace(**fields)  # noqa: E731
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(of_mlflow, "_MLFLOW_AVAILABLE", True)
    monkeypatch.setattr(of_mlflow, "_get_resolve_tags", lambda: lambda tags: tags)
    parts = {
        "mlflow": {"set_tracking_uri": given.append},
        "mlflow.tracking": {"MlflowClient": lambda uri: run},
        "mlflow.entities": {"Param": entity, "Metric": entity},
        "mlflow.utils": {},
        "mlflow.utils.mlflow_tags": {"MLFLOW_RUN_NAME": "name"},
    }
    for name, contents in parts.items():
        monkeypatch.setitem(sys.modules, name, module(name, **contents))
    return run, given


TRACKERS = ("wandb", "mlflow", "trackio")


def find_place(name, given):
    """Return project, group and tags that a tracker was given."""
    run, options = given[name]
    if name == "wandb":
        return options["project"], options["group"], options["tags"]
    if name == "trackio":
        return options["project"], options.get("group"), options["config"].get("tags")
    tags = {key: value for key, value in run.tags.items() if key != "name"}
    group = tags.pop("group", None)
    return run.logged[0], group, [*tags] or None


@pytest.fixture
def given(wandb, mlflow, monkeypatch):
    """{tracker: the run and the options that it was given}"""
    options = {}
    run = SimpleNamespace(log=lambda metrics, step: None)
    fake = module("trackio", init=lambda **found: (options.update(found), run)[1])
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return {"wandb": wandb, "mlflow": mlflow, "trackio": (run, options)}


@pytest.mark.parametrize("name", TRACKERS)
def test_every_tracker_takes_project_group_and_tags(name, make_loggers, given):
    make_loggers(f"{{name: {name}, project: mine, group: twins, tags: [first, try]}}")
    assert find_place(name, given) == ("mine", "twins", ["first", "try"])
    assert {"project", "group", "tags"} <= {*options(registry.find("loggers", name))}


@pytest.mark.parametrize("name", TRACKERS)
def test_cells_of_a_comparison_are_one_group(name, make_loggers, given):
    with loggers.group_runs("digits"):
        make_loggers(name)
    project = "zoo" if name == "wandb" else "digits"
    assert find_place(name, given) == (project, "digits", None)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_of_its_own_is_in_no_group(name, make_loggers, given):
    make_loggers(name)
    project = "zoo" if name == "wandb" else "vit_none"
    assert find_place(name, given) == (project, None, None)


def test_a_cell_logs_as_one_of_its_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(cell, "signal", lambda *_: None)
    found = []
    monkeypatch.setattr(cell, "train_cell", lambda *_, **__: found.append(loggers._group.get()))
    run = tmp_path / "digits" / "cells" / "rope-0"
    run.mkdir(parents=True)
    cell.run_cell(run)
    assert (found, loggers._group.get()) == (["digits"], "")


def test_metrics_csv_is_always_there(make_loggers):
    _, found = make_loggers()
    assert [type(logger).__name__ for logger in found] == ["MetricsFile"]


def test_the_log_of_a_run_that_has_ended_is_not_opened_again(tmp_path):
    """A thread that writes events may hold its handler while the run ends."""
    log = logging.getLogger("zoo")
    before = [*log.handlers]
    with loggers.log_to_file(tmp_path / "train.log"):
        (handler,) = set(log.handlers) - set(before)
        log.warning("during")
    handler.handle(logging.LogRecord("zoo", logging.WARNING, "", 0, "after", None, None))
    assert handler.stream is None
    assert "during" in (tmp_path / "train.log").read_text()
    assert "after" not in (tmp_path / "train.log").read_text()


@pytest.mark.parametrize("name", ["tensorboard", "auto"])  # recipes of version 0.3 name auto
def test_tensorboard_is_told_the_recipe(make_loggers, name):
    recipe, (_, board) = make_loggers(name)
    board.save()
    assert (
        f"dim: {recipe.model.options['dim']}"
        in Path("runs/one/tensorboard/hparams.yaml").read_text()
    )


def test_wandb_is_told_the_recipe_and_metrics_and_keeps_to_the_machine(
    wandb, make_loggers, monkeypatch
):
    run, given = wandb
    recipe, _ = make_loggers("wandb")
    assert run.logged == [recipe.plain(), {"train/loss": 2.0, "trainer/global_step": 3}]
    assert (given["project"], given["name"], given["dir"]) == ("zoo", "one", "runs/one")
    assert of_wandb.os.environ["WANDB_MODE"] == "dryrun"
    first = given["id"]
    make_loggers("wandb")
    assert given["id"] == first


def test_mlflow_is_told_the_recipe_and_metrics_in_the_run_directory(mlflow, make_loggers):
    run, given = mlflow
    make_loggers("mlflow")
    assert given == [f"sqlite:///{Path('runs/one/mlflow.db').resolve()}"]
    name, *params, metrics = run.logged  # MLflow takes a hundred at a time
    assert name == "vit_none"
    assert {("seed", "0"), ("model/dim", "16")} <= {one for part in params for one in part}
    assert metrics == [("train/loss", 2.0)]


def test_mlflow_goes_where_the_environment_says(mlflow, make_loggers, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere")
    make_loggers("mlflow")
    assert mlflow[1] == ["http://somewhere"]


def test_a_tracker_that_is_not_installed_is_a_fault(tiny, capsys, monkeypatch):
    monkeypatch.setattr(loggers, "list_missing", list)
    code = main(["fit", "vit_none", "trainer.logger=[wandb,mlflow]"])
    logged = capsys.readouterr().err
    assert code == 2
    remedy = format_pip("install", "wandb")
    problem = "command line: trainer.logger: wandb is not installed"
    assert f"{problem}; {remedy}, or leave it out" in logged
    assert f"mlflow is not installed; {format_pip('install', 'mlflow')}" in logged
    assert not Path("runs").exists()


def test_an_unknown_tracker_is_a_fault(tiny, capsys):
    assert main(["fit", "vit_none", "trainer.logger=tensorbord"]) == 2
    assert "trainer.logger" in capsys.readouterr().err


def test_a_small_confusion_matrix_is_a_table_in_tensorboard(make_loggers, monkeypatch):
    _, found = make_loggers("tensorboard")
    shown = []
    monkeypatch.setattr(found[1].experiment, "add_text", lambda *given: shown.append(given))
    loggers.log_confusion(found, ("a", "b"), [[3, 1], [0, 2]], 7)
    assert shown == [
        (
            "test/confusion",
            "| label |  a |  b |\n| ----- | -: | -: |\n| a     |  3 |  1 |\n| b     |  0 |  2 |",
            7,
        )
    ]
    many = [[0] * 21 for _ in range(21)]
    loggers.log_confusion(found, [*map(str, range(21))], many, 7)
    assert len(shown) == 1
    # its thread writes to a relative path, which another test would move
    found[1].experiment.close()


def test_trackio_begins_a_run_with_the_recipe(make_loggers, monkeypatch):
    given, entries = [], []
    run = SimpleNamespace(
        log=lambda metrics, step: entries.append((step, metrics)), finish=lambda: None
    )
    fake = module("trackio", init=lambda **options: (given.append(options), run)[1])
    monkeypatch.setitem(sys.modules, "trackio", fake)
    recipe, (_, logger) = make_loggers("{name: trackio, project: mine}")
    (options,) = given
    assert (options["project"], options["config"]) == ("mine", recipe.plain())
    assert options["name"].startswith("one-")
    logger.finalize("success")
    logger.log_metrics({"test/loss": 1.0}, 4)  # after training
    assert entries == [(3, {"train/loss": 2.0}), (4, {"test/loss": 1.0})]
    assert given[1] == options


def test_callbacks_by_name_log_more_of_training(tiny):
    more = ["trainer.callbacks=[learning_rate, gradient_norm]", "trainer.log_every_n_steps=1"]
    more += ["trainer.max_epochs=1", "optim.warmup_ratio=0.5", "trainer.logger=csv"]
    fit("vit_comrope", [*tiny, *more], Path("run"), "never")
    _, rows = loggers.read(Path("run/metrics.csv"))
    steps = [row for row in rows if row["train/loss"]]
    rates = [float(row["train/learning_rate"]) for row in steps]
    peak = zoo.load_recipe("run/recipe.yaml").optim.options["lr"]
    assert rates[:3] == pytest.approx([peak / 3, 2 * peak / 3, peak])
    assert all(float(row["train/gradient_norm"]) > 0 for row in steps)
    assert not list(Path("run").glob("tensorboard*"))


@pytest.mark.parametrize("section", ["logger", "callbacks"])
def test_a_member_is_listed_once(section, tiny):
    name = "csv" if section == "logger" else "learning_rate"
    with pytest.raises(RecipeError, match=rf"trainer.{section}.1: {name} appears twice; list it"):
        zoo.load_recipe("vit_none", parse_overrides([f"trainer.{section}=[{name},{name}]"]))
