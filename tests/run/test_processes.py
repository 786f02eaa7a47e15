"""Several processes train as one."""

import json
import math
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from language import mask_by_contents
from pictures import parquet
from several import run, slurm, torchrun
from tiny import TINY
from torch.distributed.tensor import DTensor
from training import evaluate, fit

from zoo import registry
from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.data.vision import ImageDecoder
from zoo.errors import DataError, OptionError
from zoo.evaluation.results import Evaluation
from zoo.run import checkpoint, loggers
from zoo.run.callbacks import nan_guard, stop_on_signal
from zoo.run.callbacks.manifest import measure_step_seconds
from zoo.run.callbacks.nan_guard import FiniteGuard
from zoo.run.callbacks.stop_on_signal import SignalRhythm, StopOnSignal
from zoo.run.fit import check_test_split
from zoo.run.load import read_recipe
from zoo.run.processes import compute_batch_size, divide_batch
from zoo.tasks import base  # noqa: F401  before processes are forked, each of which would import it
from zoo.tasks.masked_lm import MaskedLM

NIGHT = pytest.mark.nightly
STILL = ["model.position_augmentation.jitter=0", "model.block.dropout=0", "model.block.drop_path=0"]
IMAGES = [*TINY, *STILL, "data.val=0.3996"]
STREAMED = ["data.streams=true", "model.memory_length=16"]
TEXT = """
extends: [model/lm_tiny, data/text, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, encoding: rope}
data: {files: [one.txt, two.txt, three.txt], length: 16, batch_size: 4}
task: causal_lm
trainer: {max_epochs: 1, accelerator: cpu}
"""
ALBUM = """
extends: [model/vit_tiny, data/images, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, patch_size: 4, encoding: rope_axial, block: {drop_path: 0}}
data: {path: made, size: 8, batch_size: 4, val: 0.2}
task: classification
trainer: {max_epochs: 1, accelerator: cpu}
"""
MASKED = [
    "task.name=masked_lm",
    "model.name=encoder",
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "model.encoding=rope",
]
SEGMENTED = [
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "data.train=96",
    "data.val=16",
    "data.test=16",
    "trainer.accelerator=cpu",
]


@pytest.fixture
def tiny(tiny):
    """Three steps of two processes in each of two epochs."""
    return [*tiny, "trainer.max_epochs=2"]


@pytest.fixture
def still(tiny):
    """Nothing drawn at random but by the data, 360 images to train on; two processes of 32 take the batch of one of 64."""
    return [*tiny, *STILL, "data.batch_size=32", "data.val=0.3996"]


@pytest.fixture
def text(tiny):
    """A recipe of three short texts that are kept apart."""
    for name, words in (("one", "row, row, "), ("two", "your boat\n"), ("three", "gently ")):
        Path(f"{name}.txt").write_text(words * 137)
    Path("text.yaml").write_text(TEXT)
    return "text.yaml"


@pytest.fixture
def album(tiny):
    """A recipe of images, some of which are corrupt."""
    parquet(Path("made/train-0.parquet"), 40, broken=(3, 17, 30))
    parquet(Path("made/test-0.parquet"), 7)
    Path("album.yaml").write_text(ALBUM)
    return "album.yaml"


def several(given, place, resume="never", recipe="vit_comrope", launcher=torchrun, count=2):
    def work(rank):
        result = fit(recipe, given, Path(place), resume)
        Path(f"result-{rank}.json").write_text(json.dumps(result))

    return run(count, work, launcher)


def logs():
    return "".join(path.read_text() for path in sorted(Path().glob("rank-*.log")))


def results():
    return [json.loads(Path(f"result-{rank}.json").read_text()) for rank in range(2)]


def close(one, two):
    return one.keys() == two.keys() and all(
        torch.allclose(one[key], two[key], atol=1e-6, rtol=1e-5) for key in one
    )


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(
    ("launcher", "strategy"),
    [
        (torchrun, "ddp"),
        pytest.param(slurm, "auto", marks=NIGHT),
        pytest.param(torchrun, "fsdp", marks=NIGHT),
    ],
)
def test_two_processes_are_one_with_the_joined_batch(launcher, strategy, still, weights):
    whole = fit("vit_comrope", [*still, "data.batch_size=64"], Path("one"), "never")
    assert several([*still, f"trainer.strategy={strategy}"], "two", launcher=launcher) == [0, 0], (
        logs()
    )
    for name in ("last", "best"):
        assert close(
            weights(f"one/checkpoints/{name}.ckpt"), weights(f"two/checkpoints/{name}.ckpt")
        )
    first, second = results()
    assert second["metrics"] == first["metrics"]
    assert first["count"] == whole["count"] == 719
    assert first["metrics"] == pytest.approx(whole["metrics"], abs=1e-6)


@pytest.mark.parametrize(
    ("recipe", "options", "size", "accumulated", "strategy"),
    [
        pytest.param("text.yaml", ["data.documents=true"], 8, 1, "ddp", marks=NIGHT),
        pytest.param("text.yaml", ["data.documents=true"], 8, 2, "ddp", marks=NIGHT),
        ("text.yaml", MASKED, 8, 1, "ddp"),
        pytest.param("text.yaml", STREAMED, 8, 1, "ddp", marks=NIGHT),
        pytest.param("vit_comrope", IMAGES, 64, 4, "ddp", marks=NIGHT),
        ("vit_comrope", IMAGES, 64, 4, "fsdp"),
        ("album.yaml", [*STILL, "data.skip=0.3"], 8, 1, "ddp"),
    ],
)
def test_gradients_are_those_of_the_joined_batch(
    recipe, options, size, accumulated, strategy, text, album, monkeypatch
):
    """Though each process, and each accumulated batch, has another number of targets.

    So in the last step of the epoch too, which has fewer batches, and a short one.
    """

    def write(self, trainer, task, optimizer):
        gradients = {name: weight.grad for name, weight in task.named_parameters()}
        whole = {
            name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()
            for name, gradient in gradients.items()
        }
        if trainer.is_global_zero:
            torch.save(whole, f"gradients-{trainer.world_size}-{trainer.global_step}.pt")

    monkeypatch.setattr(FiniteGuard, "on_before_optimizer_step", write)
    monkeypatch.setattr(MaskedLM, "mask", mask_by_contents)
    # weights hardly move, so that every step can be compared
    options = [*options, "optim.lr=1e-12", "optim.warmup_ratio=0"]
    fit(recipe, [*options, f"data.batch_size={size}"], Path("one"), "never")
    options = [*options, f"trainer.accumulate_grad_batches={accumulated}"]
    options += [f"data.batch_size={size // 2 // accumulated}", f"trainer.strategy={strategy}"]
    assert several(options, "two", recipe=recipe) == [0, 0], logs()
    steps = len([*Path().glob("gradients-1-*.pt")])
    assert steps >= 3
    for step in range(steps):
        one, two = (torch.load(f"gradients-{count}-{step}.pt") for count in (1, 2))
        assert close(one, two)


@pytest.mark.parametrize(
    "options", [[], ["data.val=test", "data.test=test", "data.stream.samples=32"]]
)
def test_images_are_decoded_once_and_dealt_out(options, tiny, monkeypatch, tmp_path):
    """Where they are streamed each process decodes its share, that of validation again for diagnostics."""
    # other tests decode equal images
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parquet(Path("made/train-0.parquet"), 40)
    parquet(Path("made/test-0.parquet"), 7)
    Path("album.yaml").write_text(ALBUM)

    def decode(self, content, *crop, original=ImageDecoder.decode):
        with Path(f"decoded-by-{os.environ.get('RANK')}").open("a") as seen:
            seen.write(".")
        return original(self, content, *crop)

    monkeypatch.setattr(ImageDecoder, "decode", decode)
    assert several(options, "two", recipe="album.yaml") == [0, 0], logs()
    counts = [len(path.read_text()) for path in sorted(Path().glob("decoded-by-?"))]
    assert counts == ([16 + 4 + 4 + 4, 16 + 3 + 3 + 3] if options else [47])
    one = fit("album.yaml", [*options, "data.batch_size=8"], Path("one"), "never")
    assert results()[0]["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
    assert results()[0]["count"] == one["count"]


def test_evaluation_counts_each_sample_once(still):
    fit("vit_comrope", [*still, "trainer.max_epochs=1"], Path("one"), "never")
    given = ["data.batch_size=50", "evaluate.resolutions=[8]", "trainer.accelerator=cpu"]
    one = evaluate("one", given)

    def work(rank):
        result = evaluate("one", given)
        Path(f"result-{rank}.json").write_text(json.dumps(result.to_dict()))

    assert run(2, work) == [0, 0], logs()
    first, second = results()
    assert second == {key: value for key, value in first.items() if key != "figure"}
    two = Evaluation.from_dict(first)
    for name in ("trained", "8"):
        assert two.find(name).metrics == pytest.approx(one.find(name).metrics, abs=1e-6)


@pytest.mark.parametrize(
    ("strategy", "stops"),
    [
        ("ddp", [(2, [1])]),
        pytest.param("ddp", [(1, [0]), (2, [1]), (4, [0, 1])], marks=NIGHT),
        pytest.param("fsdp", [(4, [1])], marks=NIGHT),
    ],
)
def test_a_signal_to_any_process_stops_all_and_loses_nothing(strategy, stops, tiny, monkeypatch):
    """Random numbers of each process included: this recipe draws them. FSDP writes shards."""
    tiny.append(f"trainer.strategy={strategy}")
    if strategy == "fsdp":
        tiny += ["trainer.sharded_checkpoints=true", "trainer.ema_decay=0.9"]
    for step, ranks in stops:

        def kill(self, trainer, *_, step=step, ranks=ranks):
            if trainer.global_step == step and trainer.global_rank in ranks:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(StopOnSignal, "on_train_batch_start", kill)
            assert several(tiny, "broken", "auto") == [143, 143], logs()
        assert checkpoint.read(Path("broken/checkpoints/last.ckpt"))["global_step"] == step + 1
        assert logs().count("SIGTERM") == 1
    assert several(tiny, "broken", "auto") == [0, 0], logs()
    assert several(tiny, "whole") == [0, 0], logs()
    whole, broken = (
        checkpoint.read(Path(one, "checkpoints/last.ckpt")) for one in ("whole", "broken")
    )
    for entry in {"state_dict", checkpoint.LIVE} & whole.keys():
        assert same(whole[entry], broken[entry])


@pytest.mark.parametrize(
    ("recipe", "options", "strategy"),
    [
        pytest.param("vit_comrope", None, "ddp", id="classes"),
        pytest.param("text.yaml", [], "ddp", id="text", marks=NIGHT),
        pytest.param("text.yaml", ["data.documents=true"], "ddp", id="documents", marks=NIGHT),
        pytest.param("text.yaml", MASKED, "ddp", id="fill", marks=NIGHT),
        pytest.param(
            "text.yaml", ["data.documents=true"], "fsdp", id="documents-fsdp", marks=NIGHT
        ),
        pytest.param("seg_digits_comrope", SEGMENTED, "ddp", id="pixels", marks=NIGHT),
    ],
)
def test_processes_communicate_once_in_a_logged_step_and_in_no_other(
    recipe, options, strategy, tiny, text, monkeypatch
):
    """In addition to the reduction of gradients and the exchange of signals.

    Accumulated batches do not communicate, and neither does the norm of gradients, which have been
    reduced. DDP reduces the number of targets with gradients. With FSDP each step reduces it, and
    another number: whether all weights and gradients of a process are finite.
    """
    steps, calls = [], []
    reduce = torch.distributed.all_reduce

    def count(tensor, *given, **named):
        # tensors of DDP have all gradients
        if tensor.numel() < 10:
            calls.append(1)
        return reduce(tensor, *given, **named)

    def begin(self, trainer, task, batch, index):
        if index % 2 == 0:
            del calls[:]

    def write(self, trainer, *given, original=StopOnSignal.on_train_batch_end):
        original(self, trainer, *given)
        if given[-1] % 2 == 1:
            steps.append((trainer.global_step, len(calls)))
        Path(f"calls-{trainer.global_rank}.json").write_text(json.dumps(steps))

    monkeypatch.setattr(torch.distributed, "all_reduce", count)
    monkeypatch.setattr(stop_on_signal, "WARM_UP", 1)
    monkeypatch.setattr(stop_on_signal, "SECONDS", math.inf)
    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", begin)
    monkeypatch.setattr(StopOnSignal, "on_train_batch_end", write)
    given = ["trainer.max_epochs=1", "trainer.log_every_n_steps=3", f"trainer.strategy={strategy}"]
    given += ["trainer.accumulate_grad_batches=2", "trainer.callbacks=[gradient_norm]"]
    given += [*tiny, "data.batch_size=8"] if options is None else [*options, "data.batch_size=4"]
    assert several(given, "run", recipe=recipe) == [0, 0], logs()
    of_each = 2 if strategy == "fsdp" else 0
    for rank in range(2):
        found = dict(json.loads(Path(f"calls-{rank}.json").read_text()))
        assert len(found) >= 6
        assert found.pop(1) == 1 + of_each  # signals are exchanged after the first step
        assert found == {step: of_each + int(step % 3 == 0) for step in found}


@pytest.mark.parametrize(("seconds", "most"), [(0.25, 4), (0.001, 64), (30, 1)])
def test_signals_are_exchanged_about_once_in_a_second(seconds, most, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stop_on_signal.time, "monotonic", lambda: now[0])
    pace, exchanged = SignalRhythm(), []
    for step in range(1, 8 + 3 * most + 1):
        now[0] += seconds
        if pace.is_due():
            exchanged.append(step)
            pace.begin(pace.propose())
    assert exchanged == [*range(1, 9), *(8 + most * each for each in (1, 2, 3))]


@pytest.mark.parametrize(
    ("strategy", "is_later"),
    [("ddp", False), pytest.param("fsdp", False, marks=NIGHT), ("fsdp", True)],
)
def test_a_number_that_is_not_finite_in_one_process_stops_all(
    strategy, is_later, tiny, monkeypatch
):
    """Whether it is read at once, or, as on a GPU, after the step."""

    def spoil(self, trainer, task, batch, index, original=FiniteGuard.on_train_batch_start):
        original(self, trainer, task, batch, index)
        if trainer.global_step == 4 and trainer.global_rank == 1:
            batch[0][0, 0, 0, 0] = float("nan")

    monkeypatch.setattr(FiniteGuard, "on_train_batch_start", spoil)
    monkeypatch.setattr(nan_guard, "_reads_later", lambda trainer: is_later)
    assert several([*tiny, f"trainer.strategy={strategy}"], "run") == [3, 3], logs()
    assert (
        "first: the output of model.patch_embed in process 1; batch, random states and weights are in run/replay.pt"
        in logs()
    )
    kept = checkpoint.read(Path("run/replay.pt"))
    assert kept["replay"]["batch"][0].isnan().sum() == 1
    assert all(value.isfinite().all() for value in kept["state_dict"].values())


def test_a_process_that_dies_is_missed_by_the_others(tiny, monkeypatch):
    def die(self, trainer, *_):
        if trainer.global_step == 4 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", die)
    assert several(tiny, "run") == [1, -signal.SIGKILL]
    assert (
        "process 0 cannot reach another process, which has died or hangs; still there: best.ckpt"
        in logs()
    )


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=NIGHT)])
def test_a_process_that_hangs_is_missed_in_the_time_that_the_recipe_sets(
    strategy, tiny, monkeypatch
):
    def hang(self, trainer, *_):
        if trainer.global_step == 4 and trainer.global_rank == 1:
            # until the other one has given up
            while "which hangs" not in logs():
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", hang)
    options = [*tiny, f"trainer.strategy={strategy}", "trainer.collective_timeout=4"]
    assert several(options, "run") == [1, -signal.SIGKILL]
    limit = "trainer.collective_timeout=4"
    words = f"process 0 waited 4 seconds for another process, which hangs ({limit}); still there: "
    assert words in logs()


def test_one_process_goes_on_from_what_two_have_saved(tiny, weights, caplog):
    assert several([*tiny, "trainer.max_epochs=1"], "run") == [0, 0], logs()
    with caplog.at_level("INFO", "zoo"):
        fit("vit_comrope", tiny, Path("run"), "auto")
    assert "saved by 2 processes and is resumed by 1: random numbers are drawn anew" in caplog.text
    changed = "64 (64 x 1 accumulated x 1) from here on, 128 (64 x 1 accumulated x 2) before"
    assert f"{changed}; trainer.accumulate_grad_batches=2 keeps their number" in caplog.text
    assert checkpoint.read(Path("run/checkpoints/last.ckpt"))["epoch"] == 1


def read_losses(place):
    _, rows = loggers.read(Path(place, "metrics.csv"))
    return [float(row["train/loss"]) for row in rows if row.get("train/loss")]


def test_a_global_batch_is_that_of_any_number_of_processes(text, caplog):
    """Another number of them takes the same steps, at once and after a resume."""
    given = [
        "data.global_batch_size=12",
        "data.documents=true",
        "optim.schedule=constant",
        "optim.warmup_ratio=0",
    ]
    given.append("trainer.log_every_n_steps=1")
    longer = [*given, "trainer.max_epochs=2"]
    fit(text, longer, Path("one"), "never")
    losses = read_losses("one")
    whole, half, all_but_last = (
        pytest.approx(losses[:count], abs=1e-6)
        for count in (len(losses), len(losses) // 2, len(losses) - 1)
    )
    for strategy in ("fsdp", "ddp"):
        words = [*given, f"trainer.strategy={strategy}"]
        assert several(words, strategy, recipe=text) == [0, 0], logs()
        assert read_losses(strategy) == half

    # a test in one process has the batches of each of the two
    last = Path("ddp/checkpoints/last.ckpt")
    recipe = read_recipe(checkpoint.read(last), last, {"trainer.devices": 1})
    assert "global_batch_size" not in recipe.data.options
    assert recipe.data.options["batch_size"] == 6

    shutil.copytree("ddp", "three")
    assert several(longer, "three", "auto", text, count=3) == [0, 0, 0], logs()
    assert "Samples of a step" not in logs()
    # but for the last batch, of which three leave out what they cannot share
    assert read_losses("three")[:-1] == all_but_last
    with caplog.at_level("WARNING", "zoo"):
        fit(text, longer, Path("ddp"), "auto")
    assert "Samples of a step" not in caplog.text
    assert read_losses("ddp") == whole
    recipe = load(text, parse_overrides(longer))
    assert compute_batch_size(recipe) == 12
    assert measure_step_seconds(recipe, Path("ddp"), 1) > 0


@pytest.mark.parametrize(
    ("total", "processes", "accumulated", "words"),
    [
        (512, 8, 1, 64),
        (6144, 8, 3, 256),
        (512, 6, 1, "the nearest divisors of 512: 4 or 8; the nearest multiples of 6: 510 or 516"),
        (144, 8, 8, "of 144: 48 or 72 (trainer.accumulate_grad_batches=6 or 9)"),
        (8, 1, 16, "divisors of 8: 8 (trainer.accumulate_grad_batches=8)"),
        (2**31 - 1, 2, 1, "divisors of 2,147,483,647: 1 or 2,147,483,647"),
    ],
)
def test_a_global_batch_is_divided_or_refused(total, processes, accumulated, words):
    if isinstance(words, int):
        assert divide_batch(total, processes, accumulated) == words
        return
    with pytest.raises(OptionError) as error:
        divide_batch(total, processes, accumulated)
    assert error.value.key == "global_batch_size"
    assert words in str(error.value)


def test_a_fault_is_told_once(tiny):
    Path("run").mkdir()
    Path("run/mine").touch()
    assert several(tiny, "run") == [2, 2]
    assert logs().count("run exists already") == 1


@pytest.mark.parametrize(("processes", "is_refused"), [(1, False), (3, False), (4, True)])
def test_a_test_split_smaller_than_the_processes_is_refused(processes, is_refused):
    data = registry.find("data", "parity")(0, bits=4, train=8, val=4, test=3)
    trainer = SimpleNamespace(global_rank=0, world_size=processes)
    if not is_refused:
        check_test_split(data, trainer)
        return
    message = "the test split: 3 samples cannot be split among 4 processes; train in fewer"
    with pytest.raises(DataError, match=message):
        check_test_split(data, trainer)
