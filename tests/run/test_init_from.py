"""Runs that start from the checkpoint of another recipe."""

import shutil
from pathlib import Path

import pytest
import torch
from tiny import TINY
from training import fit

from zoo.errors import CheckpointError
from zoo.utils import follow_latest

MORE = ["model.depth=2", "model.encoding=rope_mixed", "model.block.dropout=0.1"]  # as in `tiny`
STILL = ["optim.lr=1e-12", "trainer.max_epochs=1"]  # what a run ends with is what it began with


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A tiny run."""
    run = tmp_path_factory.mktemp("trained") / "first"
    fit("vit_comrope", [*TINY, *MORE, "trainer.max_epochs=1"], run, "never")
    return run


@pytest.fixture
def first(tiny, first_run):
    """The last checkpoint of a copy of that run, beside which runs of `tiny` go."""
    shutil.copytree(first_run, "first")
    return Path("first/checkpoints/last.ckpt")


def test_a_run_starts_from_another_and_tells_how(first, tiny, weights, caplog):
    caplog.set_level("INFO", "zoo")
    result = fit(
        "vit_comrope",
        [*tiny, *STILL, f"init_from={first}", "model.depth=3", "seed=1"],
        Path("second"),
        "never",
    )
    message, log = result["init_from"], Path("second/train.log").read_text()
    assert message["copied"] == len(weights(first))
    assert not message["resampled"]
    assert all(name.startswith(("blocks.2.", "encoding.rope_mixed.2.")) for name in message["left"])
    assert f"Initialised from {first.resolve()}: {message['copied']} weights copied" in log
    assert "left blocks.2.attn.q_proj.weight: not in the checkpoint" in log
    found = weights("second/checkpoints/last.ckpt")
    for name, value in weights(first).items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0)


def test_a_resumed_run_goes_on_without_where_it_began(first, tiny, weights):
    overrides = [*tiny, f"init_from={first}"]
    fit("vit_comrope", [*overrides, "trainer.max_epochs=1"], Path("parted"), "never")
    first.unlink()
    resumed = fit("vit_comrope", [*overrides, "trainer.max_epochs=2"], Path("parted"), "auto")
    assert "init_from" not in resumed
    with pytest.raises(CheckpointError, match="of another recipe: it differs in init_from"):
        fit("vit_comrope", [*tiny, "trainer.max_epochs=3"], Path("parted"), "auto")


@pytest.mark.parametrize("change", ["absent", "corrupt", "strange"])
def test_nothing_is_started_from_a_checkpoint_that_gives_nothing(change, first, tiny):
    if change == "corrupt":
        first.write_bytes(first.read_bytes()[:-200])
    asked = "nowhere.ckpt" if change == "absent" else first
    message = {
        "absent": "no such checkpoint",
        "corrupt": "does not end with its checksum",
        "strange": "none fits",
    }[change]
    more = ["model.dim=24", "model.patch_size=2"] if change == "strange" else []
    with pytest.raises(CheckpointError, match=message):
        fit("vit_comrope", [*tiny, f"init_from={asked}", *more], Path("second"), "never")
    assert not Path("second").exists()


def test_a_run_directory_names_its_best_checkpoint(first, tiny):
    message = fit("vit_comrope", [*tiny, *STILL, "init_from=first"], Path("two"), "never")[
        "init_from"
    ]
    assert message["checkpoint"] == str(Path("first/checkpoints/best.ckpt").resolve())
    assert message["left"] == {}


def test_latest_is_the_run_before_this_one(tiny):
    for seed in (1, 2):
        donor = [] if seed == 1 else ["init_from=runs/vit_comrope/latest"]
        before = follow_latest(Path("runs/vit_comrope/latest")).resolve()
        found = fit("vit_comrope", [*tiny, *STILL, f"seed={seed}", *donor], None, "never")
    assert found["init_from"]["checkpoint"] == str(before / "checkpoints" / "best.ckpt")
