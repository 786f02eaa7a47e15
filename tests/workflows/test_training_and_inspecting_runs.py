"""Runs as a user meets them: fit, eval, list, show, and what stops a run."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from several import alone, codes, start
from tiny import TINY

import zoo as package
from zoo.cli import main
from zoo.config.command_line import parse_overrides
from zoo.tasks.classification import Classification
from zoo.utils import follow_latest


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    """The JSON of a tiny run, and the folder it was started in."""
    from training import fit

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = fit("vit_comrope", [*TINY, "trainer.max_epochs=2"], None, "never")
    return folder / result["run"], result


def test_a_run_directory_holds_all_of_a_run(digits_run):
    run, _ = digits_run
    found = {
        str(path.relative_to(run)).split("/events")[0] for path in run.rglob("*") if path.is_file()
    }
    files = {
        "recipe.yaml",
        "environment.json",
        "start.json",
        "metrics.csv",
        "train.log",
        "tensorboard",
        "end.json",
        "confusion.json",
    }
    assert files | {"checkpoints/last.ckpt", "checkpoints/best.ckpt"} == found - {
        "tensorboard/hparams.yaml"
    }
    assert (run.parent / "latest").read_text() == f"{run.name}\n"
    assert json.loads((run / "environment.json").read_text())["seed"] == 0


def test_the_resolved_recipe_is_the_same_recipe(digits_run):
    run, _ = digits_run
    overrides = [*TINY, "trainer.max_epochs=2"]
    assert (
        package.load_recipe(run / "recipe.yaml").plain()
        == package.load_recipe("vit_comrope", parse_overrides(overrides)).plain()
    )


def test_metrics_file_has_training_validation_and_test(digits_run):
    run, result = digits_run
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert sum(bool(row["val/accuracy"]) for row in rows) == 2
    assert [float(row["test/accuracy"]) for row in rows if row["test/accuracy"]] == [
        result["metrics"]["test/accuracy"]
    ]
    assert any(row["train/loss"] for row in rows)


def test_eval_gives_what_training_ended_with(digits_run, zoo):
    run, result = digits_run
    code, out, _ = zoo("eval", run, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["metrics"] == result["metrics"]
    assert found["count"] == result["count"] == 719
    assert Path(found["checkpoint"]) == run / "checkpoints" / "best.ckpt"


def test_eval_at_other_resolutions_draws_a_figure(digits_run, zoo):
    run, result = digits_run
    code, out, _ = zoo("eval", run, "evaluate.resolutions=[16,24,32]", "--json")
    found = json.loads(out)
    assert code == 0
    metrics = {one["name"]: one["metrics"] for one in found["conditions"]}
    assert list(metrics) == ["trained", "16", "24", "32"]
    assert metrics["16"] == result["metrics"]
    assert (run / "resolutions.png").read_bytes().startswith(b"\x89PNG")


def test_eval_prints_a_table(digits_run, zoo):
    run, result = digits_run
    _, out, _ = zoo("eval", run, "evaluate.resolutions=[24]")
    assert f"{result['metrics']['test/accuracy']:.4f}" in out
    assert "24 pixels" in out


@pytest.mark.parametrize("place", ["", "last", "best", "checkpoints/last.ckpt"])
def test_a_checkpoint_is_named_in_several_ways(place, digits_run, zoo):
    code, out, _ = zoo("eval", f"{digits_run[0]}/{place}", "--json")
    assert code == 0
    assert json.loads(out)["checkpoint"].endswith("last.ckpt" if "last" in place else "best.ckpt")


def test_loading_gives_the_task_with_its_weights(digits_run):
    task = package.load(digits_run[0])
    stored = torch.load(digits_run[0] / "checkpoints" / "best.ckpt", weights_only=True)
    assert not task.training
    assert all(
        torch.equal(value, stored["state_dict"][name]) for name, value in task.state_dict().items()
    )
    assert stored["zoo"]["version"] == package.__version__


def cut(content):
    return content[: len(content) // 2]


def flip_byte(content):
    return b"junk" + content[4:]


@pytest.mark.parametrize("damage", [cut, flip_byte, lambda content: b""])
def test_a_corrupt_checkpoint_is_named_with_what_is_still_good(damage, digits_run, zoo, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    content = (digits_run[0] / "checkpoints" / "last.ckpt").read_bytes()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(content)
    (tmp_path / "checkpoints" / "best.ckpt").write_bytes(damage(content))
    code, _, message = zoo("eval", tmp_path)
    assert code == 5
    assert "best.ckpt" in message
    assert "last.ckpt" in message
    assert len(message.strip().splitlines()) <= 6


class Payload:
    def __reduce__(self):
        return (Path.touch, (Path("hacked"),))


def test_a_checkpoint_that_would_run_code_is_refused(zoo, tmp_path):
    torch.save({"zoo": {}, "state_dict": Payload()}, tmp_path / "evil.ckpt")
    code, _, message = zoo("eval", "evil.ckpt")
    assert code == 5
    assert "unsafe" in message
    assert not (tmp_path / "hacked").exists()


def test_checkpoints_that_are_missing_or_of_another_recipe(digits_run, zoo, tmp_path):
    assert zoo("eval", "nowhere")[0] == 5
    torch.save({"weights": torch.ones(2)}, tmp_path / "foreign.pt")
    assert zoo("eval", "foreign.pt")[0] == 5
    code, _, message = zoo("eval", digits_run[0], "model.depth=2")
    assert code == 5
    assert "another recipe" in message
    assert zoo("eval", digits_run[0], "model.depht=2")[0] == 2


def test_a_loss_that_is_not_finite_stops_before_the_optimizer(zoo, monkeypatch):
    step = Classification.training_step

    def interrupt(self, batch, batch_idx):
        return step(self, batch, batch_idx) * (
            float("nan") if self.trainer.global_step == 7 else 1.0
        )

    monkeypatch.setattr(Classification, "training_step", interrupt)
    code, _, message = zoo("fit", "vit_comrope", *TINY, "trainer.max_epochs=2")
    assert code == 3
    assert "step 7" in message
    assert "last.ckpt" in message
    last = follow_latest(Path("runs/vit_comrope/latest/checkpoints/last.ckpt"))
    weights = torch.load(last, weights_only=True)
    assert weights["global_step"] == 6
    assert all(
        torch.isfinite(value).all()
        for value in weights["state_dict"].values()
        if value.is_floating_point()
    )


def test_a_signal_saves_and_stops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["fit", "vit_comrope", *TINY, "trainer.max_epochs=5000", "--run-dir", "run"]
    (running,) = start(1, lambda rank: main(words), alone)
    deadline = time.monotonic() + 90
    while (
        not (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    os.kill(running, signal.SIGTERM)
    message = codes([running]), Path("rank-0.log").read_text()
    assert message[0] == [143], message
    assert re.search(r"stopped by SIGTERM at step \d+; saved run/checkpoints/last.ckpt", message[1])
    assert "Traceback" not in message[1]
    torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)


def test_an_evaluation_that_takes_long_says_how_far_it_is(digits_run, zoo, monkeypatch, caplog):
    monkeypatch.setattr("zoo.utils.INTERVAL", -1.0)
    with caplog.at_level("INFO", "zoo"):
        assert (
            zoo("eval", digits_run[0], "trainer.accelerator=cpu", "evaluate.resolutions=null")[0]
            == 0
        )
    message = [line for line in caplog.messages if line.startswith("Tested")]
    assert message[0].startswith("Tested 1 of 12 batches, 0:0")
    assert len(message) == 11


def test_an_interrupt_saves_and_stops(zoo, monkeypatch):
    monkeypatch.setattr(
        Classification, "on_train_batch_start", lambda *given: signal.raise_signal(signal.SIGINT)
    )
    code, _, message = zoo("fit", "vit_comrope", *TINY, "--run-dir", "run")
    assert code == 130
    assert (
        "stopped by SIGINT at step 1; saved run/checkpoints/last.ckpt; add --resume auto to resume it"
        in message
    )


def test_a_run_says_what_to_do_next_and_nothing_else(process):
    running = process("fit", "vit_comrope", *TINY)
    out, message = running.communicate(timeout=120)
    assert (running.returncode, out) == (0, "")
    assert "warning" not in message.lower()
    assert "litlogger" not in message
    assert re.search(r"^next: .*zoo eval runs/vit_comrope/", message, re.MULTILINE)
    assert "attention diagnostics" in message.splitlines()[-1]


@pytest.mark.parametrize("word", ["--help", "list"])
def test_help_and_list_do_not_import_torch(word):
    probe = f"""
import sys
from zoo.cli import main
try:
    main(["{word}"])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, timeout=60)


def test_list_names_what_there_is(zoo):
    kinds = {"recipes": "vit_learned_rope_axial", "data": "digits", "models": "vit"}
    for kind, word in kinds.items():
        _, out, _ = zoo("list", kind)
        assert re.search(rf"^{word} +\S", out, re.MULTILINE), word
    _, out, _ = zoo("list", "encodings")
    names = re.findall(r"^(\w+)  +\S", out, re.MULTILINE)
    assert sorted(names) == sorted(package.encoding_names())


def test_show_a_recipe(zoo):
    _, out, _ = zoo("show", "vit_comrope", "model.pool=class", "model.registers=3")
    assert re.search(r"encoding.comrope_ld +[\d,]+\n", out)
    assert "tokens per sample: 68" in out or "tokens per sample: 20" in out
    assert "on cpu: sdpa" in out
