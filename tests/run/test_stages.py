"""Stages of a recipe: base, scaling, window and length change after some steps, and training goes on."""

import signal
from pathlib import Path

import pytest
import torch
from training import evaluate, fit

import zoo
from zoo import config
from zoo.cli.main import main
from zoo.comparison.estimate import _count_flops
from zoo.config.stages import resolve_stage
from zoo.data.spec import TextBatch
from zoo.errors import RecipeError, Stopped
from zoo.run import checkpoint, loggers
from zoo.run.build import build_model
from zoo.run.callbacks.stage_changes import move_weights
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.load import load_experiment
from zoo.tasks.causal_lm import CausalLM

RECIPE = """
extends: [model/lm_tiny, data/text, optim/adamw, trainer/default]
model: {dim: 16, depth: 2, heads: 2, encoding: rope, block: {dropout: 0.1}}
data: {files: [song.txt], length: 8, batch_size: 8}
task: causal_lm
optim: {lr: 0.01}
trainer: {max_epochs: 1, accelerator: cpu, val_every_n_steps: 4, log_every_n_steps: 1}
diagnostics: {every_n_steps: 4, max_overhead: 1.0}
stages:
  - {from_step: 3, model: {encoding: {base: 2}}}
  - from_step: 9
    data: {length: 32}
    model: {window: 16, encoding: {scaling: {rule: yarn, factor: 4, original: 8}}}
"""


@pytest.fixture
def song(tmp_path, monkeypatch):
    """A recipe of a text of a few lines, whose positions change twice."""
    monkeypatch.chdir(tmp_path)
    Path("song.txt").write_text("row, row, row your boat, gently down the stream\n" * 30)
    Path("song.yaml").write_text(RECIPE)
    return "song.yaml"


def stop_at(step):
    """A hook that makes a signal arrive while `step` is under way."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == step - 1:
            self._note(signal.SIGTERM, None)

    return on_train_batch_start


def read(file):
    return checkpoint.read(Path(file))


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture
def steps(monkeypatch):
    """Weights, batch, random state, loss and learning rate of each step of the runs that follow."""
    noted, compute = [], CausalLM.training_step

    def note(self, batch, batch_idx):
        weights = {key: value.clone() for key, value in self.state_dict().items()}
        random = torch.get_rng_state()
        loss = compute(self, batch, batch_idx)
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        noted.append((weights, batch, random, loss.detach().clone(), rate))
        return loss

    monkeypatch.setattr(CausalLM, "training_step", note)
    return noted


@torch.no_grad()
def repeat(recipe, spec, weights, batch, random):
    """Compute the loss of a step by a model that is built for it."""
    torch.manual_seed(0)
    model = build_model(recipe, spec)
    model.load_state_dict({key.removeprefix("model."): one for key, one in weights.items()})
    torch.set_rng_state(random)
    logits = model(batch.inputs)
    return torch.nn.functional.cross_entropy(logits.mT, batch.targets)


def test_each_stage_computes_as_a_recipe_with_its_changes(song, steps):
    fit(song, [], Path("run"))
    task = zoo.load("run")
    later = {"model.encoding.base": 2}
    last = {
        **later,
        "data.length": 32,
        "data.batch_size": 2,
        "model.window": 16,
        "model.encoding.scaling": {"rule": "yarn", "factor": 4, "original": 8},
    }
    for step, changes, shape in (
        (0, {}, (8, 8)),
        (2, {}, (8, 8)),
        (3, later, (8, 8)),
        (8, later, (8, 8)),
        (9, last, (2, 32)),
    ):
        weights, batch, random, loss, _ = steps[step]
        recipe = config.load(song, {**changes, "stages": []})
        spec = task.spec.with_size((recipe.data.options["length"],))
        assert batch.inputs.shape == shape
        torch.testing.assert_close(repeat(recipe, spec, weights, batch, random), loss)
        if step in (3, 9):
            before = config.load(song, {"stages": []} if step == 3 else {**later, "stages": []})
            former = repeat(before, spec, weights, batch, random)
            assert abs(former - loss) > 1e-5  # the change is felt


def test_until_the_first_stage_a_run_is_the_one_without_stages(song, steps):
    fit(song, ["stages=[{from_step: 5, model: {encoding: {base: 2}}}]"], Path("run"))
    count = len(steps)
    fit(song, ["stages=[]"], Path("plain"))
    for step, (staged, plain) in enumerate(zip(steps[:count], steps[count:], strict=True)):
        assert torch.equal(staged[3], plain[3]) == (step < 5)


@pytest.mark.parametrize("step", [2, 9, 12])
def test_a_run_stopped_in_a_stage_ends_as_if_it_had_not_been(step, song, monkeypatch):
    epochs = ["trainer.max_epochs=2"]
    whole = fit(song, epochs, Path("whole"))
    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop_at(step))
        with pytest.raises(Stopped, match=f"at step {step}"):
            fit(song, epochs, Path("broken"))
    resumed = fit(song, epochs, Path("broken"), "auto")
    assert resumed["metrics"] == whole["metrics"]
    for name in ("last", "best"):
        one, other = (read(f"{run}/checkpoints/{name}.ckpt") for run in ("whole", "broken"))
        assert same(one["state_dict"], other["state_dict"])
        assert one["zoo"] == other["zoo"]
        assert (
            one["optimizer_states"][0]["param_groups"]
            == other["optimizer_states"][0]["param_groups"]
        )


def test_a_checkpoint_is_of_its_stage(song):
    result = fit(song, ["trainer.save_top_k=20"], Path("run"))
    lengths = {}
    for file in Path("run/checkpoints").glob("step-*.ckpt"):
        task = zoo.load(file)
        lengths[read(file)["global_step"]] = task.spec.length
    assert lengths[4] == lengths[8] == 8
    assert lengths[12] == 32
    assert evaluate("run", []).metrics["test/loss"] == pytest.approx(result["metrics"]["test/loss"])
    assert read("run/checkpoints/last.ckpt")["zoo"]["samples"]["length"] == 32


def test_changes_and_lengths_are_logged(song, caplog):
    caplog.set_level("INFO", logger="zoo")
    fit(song, [], Path("run"))
    rows = loggers.read(Path("run/metrics.csv"))[1]
    # a row is numbered by the steps before it
    stages = {int(row["step"]): float(row["train/stage"]) for row in rows if row["train/stage"]}
    assert stages == {step: (step >= 3) + (step >= 9) for step in stages}
    assert {0.0, 1.0, 2.0} == {*stages.values()}
    assert "Stage 1 from step 3 on: model.encoding.base 2" in caplog.text
    assert "Stage 2 from step 9 on: model.window 16" in caplog.text


def test_operations_are_those_of_each_stage(song, capsys):
    experiment = load_experiment(song, {})
    steps, stages = zip(*experiment.list_stages(), strict=True)
    assert steps == (0, 3, 9)
    changed = {"data.length": 32, "data.batch_size": 2, "model.window": 16}
    alone = load_experiment(song, {**changed, "stages": []})
    assert [one.flops for one in stages] == [experiment.flops, experiment.flops, alone.flops]
    # 3 passes of 8 windows up to step 9, then of 2 longer ones
    expected = 3 * (9 * 8 * experiment.flops + 3 * 2 * alone.flops)
    assert _count_flops(experiment, [12]) == expected
    assert _count_flops(experiment, [12, None]) is None
    assert main(["show", song]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "FLOPs per sample" in line]
    assert [line.rpartition("pass")[2] for line in lines] == [
        "",
        ", from step 3 on",
        ", from step 9 on",
    ]


def test_the_learning_rate_goes_on(song, steps):
    fit(song, [], Path("run"))
    count = len(steps)
    fit(song, ["stages=[]", "data.length=32", "data.batch_size=2"], Path("plain"))
    assert [step[4] for step in steps[:count]] == [step[4] for step in steps[count:]]


def test_parts_of_windows_are_in_the_order_of_the_text(song):
    data = zoo.run.build.Experiment(config.load(song)).training_data
    data.setup("fit")
    batch = next(iter(data.build_loader("val")))
    data.parts = 4
    rows = data.divide_windows(batch)
    assert isinstance(rows, TextBatch)
    assert torch.equal(rows.inputs[:4].flatten(), batch.inputs[0])
    assert torch.equal(rows.targets[1, :-1], rows.inputs[1, 1:])


def test_weights_move_as_the_same_objects(song):
    recipe = config.load(song)
    spec = zoo.run.build.Experiment(recipe).spec
    source, target = build_model(recipe, spec), build_model(resolve_stage(recipe, 9), spec)
    move_weights(source, target)
    pairs = zip(source.parameters(), target.parameters(), strict=True)
    assert all(one is other for one, other in pairs)


@pytest.mark.parametrize(
    ("stages", "messages"),
    [
        ("[{from_step: 2, model: {encoding: {bas: 5}}}]", ["stages.0.model.encoding", "bas"]),
        (
            "[{from_step: 2, model: {dim: 32}}]",
            ["stages.0.model", "change their shape", "init_from"],
        ),
        ("[{from_step: 2, model: {encoding: learned}}]", ["weights"]),
        ("[{from_step: 2, optim: {lr: 1}}]", ["stages.0.optim", "unknown key"]),
        ("[{from_step: 2, data: {files: [a]}}]", ["stages.0.data.files", "cannot change within"]),
        ("[{from_step: 2, model: {memory_length: 4}}]", ["model.memory_length", "cannot change"]),
        ("[{from_step: 2}]", ["stages.0", "changes nothing"]),
        ("[{from_step: 2, data: {length: 12}}]", ["stages.0.data.length", "64 tokens"]),
        ("[{from_step: 2, data: {length: long}}]", ["stages.0.data.length", "integer"]),
        (
            "[{from_step: 2, data: {length: 32}, model: {encoding: {scaling: {rule: yarn, factor: 4}}}}]",
            ["scaling.original"],
        ),
        (
            "[{from_step: 5, model: {window: 4}}, {from_step: 5, model: {window: 2}}]",
            ["stages.1.from_step", "not after 5"],
        ),
        ("[{from_stp: 5, model: {window: 4}}]", ["from_stp", "unknown key"]),
        ("[{from_step: 4000, model: {window: 4}}]", ["stages.0.from_step", "never begins"]),
    ],
)
def test_wrong_stages_are_refused_by_name(stages, messages, song):
    with pytest.raises(RecipeError) as refused:
        fit(song, [f"stages={stages}"], Path("run"))
    for message in messages:
        assert message in str(refused.value)
    assert not [*Path("run").rglob("*.ckpt")]


def test_a_task_whose_samples_have_one_answer_has_no_other_length(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["model.dim=16", "stages=[{from_step: 2, data: {length: 128}}]"]
    with pytest.raises(RecipeError, match="samples of data passkey cannot be divided"):
        fit("passkey_rope", words, Path("run"))


@pytest.mark.nightly
def test_two_processes_compute_the_losses_of_one(song):
    losses = []
    for devices in (1, 2):
        # with so small steps, rounding does not grow
        words = ["data.global_batch_size=8", "model.block.dropout=0", "optim.lr=1e-6"]
        fit(song, [f"trainer.devices={devices}", *words], Path(str(devices)))
        header, *rows = Path(str(devices), "metrics.csv").read_text().splitlines()
        at = header.split(",").index("train/loss")
        losses.append([float(row.split(",")[at]) for row in rows if row.split(",")[at]])
    # the last window of an odd number is no step of two processes
    assert len(losses[1]) == 17
    assert losses[0][:17] == pytest.approx(losses[1], rel=1e-5)


def test_recipes_without_stages_keep_their_hash():
    recipe = config.load("lm_rope")
    assert "stages" not in recipe.plain()
    staged = config.load("lm_rope", {"stages": [{"from_step": 1, "data": {"length": 256}}]})
    assert staged.hash != recipe.hash
    assert config.from_plain(staged.plain(), origin="", name="lm_rope") == staged
