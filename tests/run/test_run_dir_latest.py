"""The file `latest` names the newest run; TensorBoard, which follows links, lists each run once."""

import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.io_wrapper import GetLogdirSubdirectories
from training import fit

import zoo
from zoo.cli import main
from zoo.run import checkpoint, run_dir
from zoo.utils import follow_latest

LATEST = Path("runs/vit_comrope/latest")


@pytest.fixture
def runs(tiny):
    """The names of two runs of a recipe, the older one first."""
    short = [*tiny, "trainer.max_steps=2", "diagnostics.every_n_steps=null"]
    return [fit("vit_comrope", [*short, f"seed={n}"], None, "never")["run"] for n in (1, 2)]


def test_tensorboard_lists_each_run_once(runs):
    found = sorted(GetLogdirSubdirectories("runs"))
    assert found == sorted(f"{run}/tensorboard" for run in runs)


def test_commands_follow_the_file(runs, tiny, capsys):
    newest = Path(runs[1])
    best = newest / "checkpoints" / "best.ckpt"
    assert checkpoint.locate(LATEST) == checkpoint.locate(LATEST / "best") == best
    assert checkpoint.locate(LATEST / "checkpoints" / "best.ckpt") == best
    assert zoo.Run(LATEST).path == newest.resolve()
    assert zoo.load_recipe(LATEST / "recipe.yaml").seed == 2
    assert main(["diff", str(LATEST), runs[0]]) == 0
    assert "seed: 2 -> 1" in " ".join(capsys.readouterr().out.split())
    assert main(["eval", str(LATEST), "trainer.accelerator=cpu", "evaluate.resolutions=null"]) == 0
    # a run is continued where it is
    longer = [*tiny, "seed=2", "trainer.max_steps=3", "diagnostics.every_n_steps=null"]
    assert fit("vit_comrope", longer, None, str(LATEST))["run"] == runs[1]
    resumed = ["--run-dir", str(LATEST), "--resume", "auto"]
    assert main(["fit", "vit_comrope", *longer, "trainer.max_steps=4", *resumed]) == 0
    assert len([*newest.parent.iterdir()]) == 3


def test_a_link_of_version_0_3_is_followed_and_replaced(runs, tiny):
    older = Path(runs[0])
    LATEST.unlink()
    LATEST.symlink_to(older.name)
    assert checkpoint.locate(LATEST / "best").resolve().parent.parent == older.resolve()
    assert run_dir.find_latest(zoo.load_recipe("vit_comrope")) == older
    run_dir.name_latest(Path(runs[1]))
    assert LATEST.read_text() == f"{Path(runs[1]).name}\n"
    assert (older / "recipe.yaml").is_file()


@pytest.mark.parametrize(
    "content", ["", "\n", "..\n", "/etc\n", "../other\n", "a\nb\n", "a\x00", "latest\n", b"\xff\n"]
)
def test_a_file_that_names_no_neighbour_is_a_file(content, tmp_path):
    (tmp_path / "a").mkdir()
    file = tmp_path / "latest"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert follow_latest(file / "best") == file / "best"


def test_a_run_that_was_removed_is_named(tmp_path):
    (tmp_path / "latest").write_text("gone\n")
    with pytest.raises(zoo.CheckpointError, match="gone: no such checkpoint"):
        checkpoint.locate(tmp_path / "latest")


def test_runs_that_begin_at_once_leave_one_whole_name(tmp_path):
    names = [f"run-{number}" for number in range(8)]

    def begin(name):
        for _ in range(20):
            run_dir.name_latest(tmp_path / name)

    processes = []
    for name in names:
        if (pid := os.fork()) == 0:
            begin(name)
            os._exit(0)
        processes.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in processes] == [0] * len(names)
    assert (tmp_path / "latest").read_text().strip() in names
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
