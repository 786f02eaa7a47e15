"""Sharded training: any number of processes, with any strategy, goes on from its checkpoints."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from several import run
from tiny import TINY, language
from torch import nn
from training import evaluate, fit

import zoo
from zoo.run import checkpoint, loggers
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.tasks import base  # noqa: F401  before processes are forked, each of which would import it

STILL = ["model.position_augmentation.jitter=0", "model.block.dropout=0", "model.block.drop_path=0"]
COMMON = [
    *(word for word in TINY if not word.startswith("data.batch_size")),
    *STILL,
    "data.val=0.3996",
    # of any number of processes up to four
    "data.global_batch_size=48",
    "optim.schedule=constant",
    "optim.warmup_ratio=0",
    "trainer.ema_decay=0.9",
    "trainer.log_every_n_steps=1",
]
DDP = ["trainer.strategy=ddp"]
FSDP = ["trainer.strategy=fsdp"]
SHARDED = [*FSDP, "trainer.sharded_checkpoints=true"]
HSDP = [*FSDP, "trainer.replicas=2"]
LAST = Path("checkpoints", "last.ckpt")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)


def train(words, place, count, resume="never", recipe="vit_comrope", common=COMMON):
    """Train in some processes."""

    def work(rank):
        fit(recipe, [*common, *words], Path(place), resume)

    if count == 1 and FSDP[0] not in words:
        work(0)
        return
    logs = [Path(f"rank-{rank}.log") for rank in range(count)]
    assert run(count, work) == [0] * count, "".join(log.read_text() for log in logs)


def read_losses(place):
    _, rows = loggers.read(Path(place, "metrics.csv"))
    return [float(row["train/loss"]) for row in rows if row.get("train/loss")]


def compare(place, expected):
    """Compare losses, weights, their average and the state of the optimizer of two runs."""
    assert read_losses(place) == pytest.approx(read_losses(expected), abs=2e-6)
    found, right = (checkpoint.read(Path(one, LAST)) for one in (place, expected))
    for entry in ("state_dict", "current_model_state"):
        torch.testing.assert_close(found[entry], right[entry], atol=2e-6, rtol=1e-4)
    (found_state,), (right_state,) = (one["optimizer_states"] for one in (found, right))
    numbers = [
        [number for group in state["param_groups"] for number in group["params"]]
        for state in (found_state, right_state)
    ]
    for number, right_number in zip(*numbers, strict=True):
        moments = (found_state["state"][number], right_state["state"][right_number])
        torch.testing.assert_close(*moments, atol=1e-6, rtol=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, SHARDED), (1, [])),
        ((1, SHARDED), (4, [*HSDP, *SHARDED])),
        ((2, SHARDED), (3, SHARDED)),
        ((3, SHARDED), (2, DDP)),
        ((4, [*HSDP, *SHARDED]), (2, FSDP)),
        ((4, SHARDED), (4, HSDP)),
        ((2, DDP), (3, FSDP)),
        ((3, FSDP), (1, [])),
    ],
)
def test_other_processes_go_on_from_shards(first, second, tiny):
    """What they train is what one process trains; shards are read as one file, and joined to one."""
    train(["trainer.max_epochs=2"], "expected", 1)
    (count, words), (next_count, next_words) = first, second
    train([*words, "trainer.max_epochs=1"], "run", count)
    is_sharded = "trainer.sharded_checkpoints=true" in words
    assert Path("run", LAST).is_dir() is is_sharded
    if is_sharded:
        zoo.convert(Path("run", LAST), to="joined", verbose=None)
        joined, shards = checkpoint.read(Path("joined", LAST)), checkpoint.read(Path("run", LAST))
        for entry in ("state_dict", "current_model_state", "optimizer_states"):
            torch.testing.assert_close(joined[entry], shards[entry], atol=0, rtol=0)
        assert joined["loops"] == shards["loops"]
        assert evaluate(Path("run", LAST)).find("trained").metrics["test/accuracy"] > 0
    train([*next_words, "trainer.max_epochs=2"], "run", next_count, "auto")
    compare("run", "expected")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("count", "words"),
    [(2, DDP), (3, DDP), (4, DDP), (1, FSDP), (2, FSDP), (3, FSDP), (4, FSDP), (4, HSDP)],
)
def test_losses_are_those_of_one_process(count, words, tiny):
    train([], "expected", 1)
    train(words, "run", count)
    compare("run", "expected")
    results = [
        json.loads(Path(one, "end.json").read_text())["metrics"] for one in ("run", "expected")
    ]
    assert results[0] == pytest.approx(results[1], abs=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("words", [DDP, FSDP, [*SHARDED, *HSDP]], ids=["ddp", "fsdp", "hsdp"])
def test_a_hybrid_of_mixers_and_attention_loses_what_one_process_does(words, tiny, tmp_path):
    common = [word for word in language(tmp_path / "letters") if "batch_size" not in word]
    common += ["model.depth=4", "data.global_batch_size=8", "trainer.max_steps=6"]
    common += ["trainer.ema_decay=0.9", "trainer.log_every_n_steps=1"]
    train([], "expected", 1, recipe="lm_hybrid", common=common)
    train(words, "run", 4 if words[-1] == HSDP[-1] else 2, recipe="lm_hybrid", common=common)
    compare("run", "expected")


@pytest.mark.nightly
def test_compiled_blocks_of_shards_lose_what_others_do(tiny, monkeypatch):
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: original(self, backend="eager"))
    train(["model.depth=2"], "expected", 1)
    train(["model.depth=2", *FSDP, "trainer.compile=blocks"], "run", 2)
    compare("run", "expected")


@pytest.mark.nightly
def test_a_process_of_copies_that_hangs_is_missed_in_the_time_that_the_recipe_sets(
    tiny, monkeypatch
):
    def hang(self, trainer, *_):
        if trainer.global_step == 4 and trainer.global_rank == 3:
            # until the others have given up
            while sum("which hangs" in log.read_text() for log in Path().glob("rank-?.log")) < 3:
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", hang)

    def work(rank):
        options = [*HSDP, "trainer.collective_timeout=4"]
        fit("vit_comrope", [*COMMON, *options], Path("run"), "never")

    assert run(4, work) == [1, 1, 1, -signal.SIGKILL]
    for rank in range(3):
        words = f"process {rank} waited 4 seconds for another process, which hangs"
        assert words in Path(f"rank-{rank}.log").read_text()
