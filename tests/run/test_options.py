"""Options of the trainer that change how, and not what, is trained."""

import csv
import json
import logging
import re
from pathlib import Path

import pytest
import torch
from tiny import language
from torch import nn
from training import fit

import zoo
from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.errors import CheckpointError, RecipeError
from zoo.models.transformer import Block
from zoo.run import checkpoint
from zoo.run import fit as fit_module
from zoo.run.build import Experiment, build_data, build_task, build_trainer
from zoo.run.fit import THREAD_VARIABLES
from zoo.run.preflight import build_experiment
from zoo.tasks.base import Task

ONE = ["trainer.max_epochs=1", "data.batch_size=128", "model.depth=1"]


@pytest.fixture
def eagerly(monkeypatch):
    """Compilation without a C++ compiler; counts the models."""
    counted, compiled = [], nn.Module.compile
    monkeypatch.setattr(
        nn.Module,
        "compile",
        lambda self, **_: (counted.append(self), compiled(self, backend="eager"))[1],
    )
    return counted


def read_checkpoint(run, name="last"):
    return checkpoint.read(Path(run, "checkpoints", f"{name}.ckpt"))


def test_weights_and_their_names_are_those_of_a_plain_run(tiny, weights, eagerly):
    drawn = ["model.block.dropout=0", "model.encoding=none"]  # that backend draws other numbers
    once = [*tiny, *ONE, *drawn, "trainer.fast_dev_run=true"]
    fit("vit_comrope", once, Path("plain"), "never")
    more = [
        "trainer.compile=true",
        "trainer.activation_checkpointing=true",
        "trainer.ema_decay=0.5",
    ]
    fit("vit_comrope", [*once, *more], Path("other"), "never")
    plain, other = weights("plain/checkpoints/last.ckpt"), read_checkpoint("other")
    assert list(plain) == list(other["state_dict"]) == list(other["current_model_state"])
    for name, value in plain.items():
        torch.testing.assert_close(other["current_model_state"][name], value, msg=name)
    assert len(eagerly) == 1
    zoo.load("other")


def test_blocks_are_compiled_with_a_mode_and_products_keep_their_precision(tiny, monkeypatch):
    compiled, precisions = [], []
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **options: compiled.append((type(self), options))
    )
    once = [*tiny, *ONE, "model.depth=2", "trainer.fast_dev_run=true"]
    plain = fit("vit_comrope", once, Path("plain"), "never")["metrics"]
    configure = Task.configure_optimizers

    def configure_and_note(task):
        precisions.append(torch.get_float32_matmul_precision())
        return configure(task)

    monkeypatch.setattr(Task, "configure_optimizers", configure_and_note)
    more = ["trainer.compile=blocks", "trainer.compile_mode=max-autotune-no-cudagraphs"]
    more.append("trainer.float32_matmul=high")
    other = fit("vit_comrope", [*once, *more], Path("other"), "never")["metrics"]
    assert compiled == [(Block, {"mode": "max-autotune-no-cudagraphs"})] * 2
    # a CPU has no TF32, and the setting ends with the run
    assert other == plain
    assert (precisions, torch.get_float32_matmul_precision()) == (["high"], "highest")


def test_a_start_logs_backends_by_type_and_the_precision_of_products(tiny, caplog, tmp_path):
    types = "model.layer_types={near: {window: 8}, far: {encoding: t5}}"
    more = [types, "model.layer_pattern=[near,far]", "model.depth=2", "model.encoding=rope"]
    path = language(tmp_path / "letters", *more, "trainer.fast_dev_run=true")
    caplog.set_level("INFO", "zoo")
    fit("lm_rope", [*path, "trainer.float32_matmul=high"], Path("run"), "never")
    backends = [line for line in caplog.messages if line.startswith("Attention backend")]
    assert backends == [
        "Attention backend of near layers: sdpa (a window, as a mask)",
        "Attention backend of far layers: chunked (a bias for each pair)",
    ]
    assert "Products of float32 matrices: high precision" in caplog.messages


def test_a_mode_without_compilation_and_a_model_without_blocks_are_refused(monkeypatch):
    with pytest.raises(RecipeError, match=r"trainer.compile_mode: nothing is compiled; set"):
        zoo.load_recipe("vit_none", {"trainer.compile_mode": "max-autotune"})
    monkeypatch.setattr("zoo.run.preflight.find_transformers", lambda model: [])
    with pytest.raises(RecipeError, match=r"trainer.compile: the model has no transformer blocks"):
        zoo.load_recipe("vit_none", {"trainer.compile": "blocks"})


def test_batches_that_are_accumulated_are_one_batch(tiny):
    def train_step(*more):
        recipe = zoo.load_recipe(
            "vit_none",
            parse_overrides(
                [*tiny, "model.block={dropout: 0, drop_path: 0}", "trainer.max_steps=1", *more]
            ),
        )
        torch.manual_seed(0)
        data = build_data(recipe)
        task = build_task(recipe, data.spec)
        found = {}
        task.on_before_optimizer_step = lambda _: found.update(
            {n: p.grad.clone() for n, p in task.named_parameters()}
        )
        trainer = build_trainer(recipe)
        trainer.limit_val_batches = 0
        trainer.fit(task, datamodule=data)
        return found

    eight = train_step("data.batch_size=8", "trainer.gradient_clip_val=null")
    twice = train_step(
        "data.batch_size=4", "trainer.gradient_clip_val=null", "trainer.accumulate_grad_batches=2"
    )
    assert eight.keys() == twice.keys()
    for name, gradient in eight.items():
        torch.testing.assert_close(twice[name], gradient, rtol=1e-4, atol=1e-6)


def test_mixed_precision_keeps_weights_in_float32(tiny):
    result = fit(
        "vit_comrope",
        [*tiny, *ONE, "trainer.precision=bf16-mixed", "trainer.ema_decay=0.5"],
        Path("run"),
        "never",
    )
    assert {value.dtype for value in read_checkpoint("run")["state_dict"].values()} == {
        torch.float32
    }
    assert result["metrics"]["test/loss"] > 0


def test_a_fused_optimizer_clips_gradients_as_a_plain_one(tiny, weights):
    once = [*tiny, *ONE, "trainer.fast_dev_run=true", "trainer.precision=bf16-mixed"]
    once += ["optim=sgd", "optim.lr=1", "optim.warmup_ratio=0", "trainer.gradient_clip_val=0.01"]
    fit("vit_comrope", once, Path("plain"), "never")
    fit("vit_comrope", [*once, "optim.fused=true"], Path("fused"), "never")
    plain = weights("plain/checkpoints/last.ckpt")
    for name, value in weights("fused/checkpoints/last.ckpt").items():
        torch.testing.assert_close(value, plain[name], msg=name)


def test_a_model_that_remembers_is_computed_again(tmp_path, monkeypatch, weights):
    from tiny import language

    monkeypatch.chdir(tmp_path)
    more = language(
        tmp_path / "letters",
        "trainer.max_epochs=2",
        "data.streams=true",
        "data.val=0.2",
        "data.test=0.2",
    )
    fit("lm_xl", more, Path("plain"), "never")
    fit("lm_xl", [*more, "trainer.activation_checkpointing=true"], Path("other"), "never")
    plain, other = read_checkpoint("plain"), read_checkpoint("other")
    assert all(
        torch.equal(other["state_dict"][name], value) for name, value in plain["state_dict"].items()
    )
    assert (
        other["batch_states"][0]["memory"]["context"]["seen"]
        == plain["batch_states"][0]["memory"]["context"]["seen"]
        > 0
    )


def test_what_is_frozen_is_as_it_began(tiny):
    more = [
        "optim.param_groups=[{match: 'blocks.*', freeze: true}, {match: head.*, lr: 2.0}]",
        "trainer.ema_decay=0.9",
    ]
    fit("vit_comrope", [*tiny, *ONE, *more], Path("run"), "never")
    content = read_checkpoint("run")
    torch.manual_seed(0)
    began = Experiment(zoo.load_recipe("run/recipe.yaml")).build_task().state_dict()
    same = {
        name
        for name, value in content["state_dict"].items()
        if name in began and value.shape == began[name].shape
    }
    frozen = {name for name in same if name.startswith("model.blocks.")}
    assert frozen
    for name in frozen:
        assert torch.equal(content["state_dict"][name], content["current_model_state"][name]), name
    assert not torch.equal(
        content["state_dict"]["model.head.weight"],
        content["current_model_state"]["model.head.weight"],
    )
    train_step = {
        at for group in content["optimizer_states"][0]["param_groups"] for at in group["params"]
    }
    assert len(train_step) == len(
        [name for name in began if name.startswith("model.") and name not in frozen]
    )


def test_a_dev_run_takes_one_batch_of_each_part_and_leaves_what_a_run_leaves(tiny):
    result = fit(
        "vit_comrope", [*tiny, "trainer.fast_dev_run=true", "trainer.ema_decay=0.5"], None, "never"
    )
    run = Path(result["run"])
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    for name in ("train/loss", "val/loss", "test/loss"):
        assert sum(bool(row[name]) for row in rows) == 1, name
    assert read_checkpoint(run)["global_step"] == read_checkpoint(run, "best")["global_step"] == 1
    assert list((run / "tensorboard").glob("events*"))


def test_a_run_does_not_go_on_from_a_dev_run(tiny):
    fit("vit_comrope", [*tiny, "trainer.fast_dev_run=true"], Path("dev"), "never")
    with pytest.raises(CheckpointError, match=r"it differs in trainer.fast_dev_run"):
        fit("vit_comrope", tiny, None, "dev")


def test_what_cannot_be_computed_again_is_a_fault(monkeypatch):
    monkeypatch.setattr("zoo.models.transformer.find_transformers", lambda model: [])
    with pytest.raises(
        RecipeError, match=r"trainer.activation_checkpointing: the model has no transformer blocks"
    ):
        zoo.load_recipe("vit_none", {"trainer.activation_checkpointing": True})


@pytest.fixture
def two_threads(monkeypatch):
    """A process with two threads, whose number no environment variable sets."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.robustness
@pytest.mark.usefixtures("two_threads")
def test_threads_are_those_that_the_process_may_use_unless_the_user_says(tiny, monkeypatch):
    experiments = {}

    def choose(word="seed=0", read_checkpoint=None, processes=1):
        if word not in experiments:
            experiments[word] = build_experiment(
                load("vit_comrope", parse_overrides([*tiny, word]))
            )
        torch.set_num_threads(2)
        text = fit_module._set_threads(experiments[word], read_checkpoint, processes)
        return torch.get_num_threads(), text

    assert choose() == (2, "2")
    # a run keeps its number, if there are so many cores
    assert choose(read_checkpoint=1) == (1, "1, as before")
    assert choose(read_checkpoint=2) == (2, "2")
    lost = "2; the run had 1000 before, but this process may use fewer cores"
    assert choose(read_checkpoint=1000) == (2, lost)
    # each of several processes has its share
    assert choose(read_checkpoint=1, processes=2) == (2, "2 in each process")
    # what the user says comes first
    given = choose("trainer.num_threads=2", read_checkpoint=1)
    assert given == (2, "2 (trainer.num_threads)")
    assert choose("trainer.num_threads=null", read_checkpoint=1) == (2, "2")
    for name in THREAD_VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "2")
            assert choose(read_checkpoint=1) == (2, f"2 ({name})")


@pytest.mark.robustness
@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_recorded_and_stays(tiny, caplog):
    """The run goes on in a process that may use more cores."""
    caplog.set_level(logging.INFO, "zoo")
    torch.set_num_threads(1)
    fit("vit_comrope", [*tiny, *ONE], Path("run"), "never")
    assert json.loads(Path("run/environment.json").read_text())["devices"]["threads"] == 1
    assert "CPU threads: 1\n" in Path("run/train.log").read_text()
    assert zoo.load_recipe("run/recipe.yaml").trainer.num_threads == "auto"

    torch.set_num_threads(2)
    fit("vit_comrope", [*tiny, *ONE, "trainer.max_epochs=2"], Path("run"), "auto")
    assert torch.get_num_threads() == 1
    assert caplog.messages.count("CPU threads: 1, as before") == 1


LOAD = re.compile(r"loadavg|/proc/stat|/proc/pressure|psutil|cpu_percent")
"""How a program learns how busy a machine is."""


def test_nothing_in_zoo_reads_the_load_of_the_machine():
    """A recipe rounds the same beside other work, since nothing that is computed depends on it."""
    package = Path(zoo.__file__).parent
    readers = [path for path in package.rglob("*.py") if LOAD.search(path.read_text())]
    assert readers == []
