"""Files that zoo writes where a folder of somebody else has a link, a FIFO, a device or a folder."""

import io
import os

import pytest
from tiny import TINY

from zoo.errors import ZooError
from zoo.launch.executor import OUTPUT, CellProcess, describe_failure, make_run_dir
from zoo.run import loggers, run_dir
from zoo.run.loggers import MetricsFile
from zoo.utils import WRITING, open_own, read_bytes, write_file, write_json

OWN = "a file that has nothing to do with zoo\n"


@pytest.fixture
def target(tmp_path):
    """A file of somebody, outside the folder; it must stay as it is."""
    path = tmp_path / "somebody.txt"
    path.write_text(OWN)
    yield path
    assert path.read_text() == OWN


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def link(path, target):
    path.symlink_to(target)


def hard_link(path, target):
    path.hardlink_to(target)


PLANTED = [link, hard_link]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda one: one.__name__)
def test_a_lock_that_is_a_link_is_refused(plant, folder, target):
    plant(folder / run_dir.LOCK, target)
    with pytest.raises(OSError, match="link"), run_dir.lock(folder, "taken"):
        pytest.fail("it was locked")
    with pytest.raises(OSError, match="link"):
        run_dir.is_locked(folder)
    (folder / run_dir.LOCK).unlink()
    assert not run_dir.is_locked(folder)
    with run_dir.lock(folder, "taken"):
        assert run_dir.is_locked(folder)


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_a_lock_that_is_no_file_is_refused(plant, folder):
    plant(folder / run_dir.LOCK)
    with pytest.raises(OSError, match=r"not a file|directory|link"), run_dir.lock(folder, "taken"):
        pytest.fail("it was locked")


def test_training_names_a_lock_that_is_a_link(folder, target, zoo):
    link(folder / run_dir.RUN_LOCK, target)
    code, _, message = zoo("fit", "vit_comrope", *TINY, "--run-dir", folder)
    assert code == 2
    assert f".lock.fit: it is a link to {target}, which zoo does not follow; remove it" in message


def test_a_link_is_replaced_and_its_target_stays(folder, target):
    link(folder / "end.json", target)
    link(folder / f".end.json{WRITING}", target)
    write_json({"a": 1}, folder / "end.json")
    assert (folder / "end.json").read_text() == '{\n  "a": 1\n}\n'
    assert not (folder / "end.json").is_symlink()
    assert sorted(path.name for path in folder.iterdir()) == ["end.json"]


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_replaced(plant, folder):
    path = folder / "end.json"
    plant(path)
    before = path.lstat()
    with pytest.raises(ZooError, match=r"end\.json: cannot be written, "):
        write_file(io.BytesIO(b"1"), path)
    assert os.path.samestat(path.lstat(), before)
    with pytest.raises(OSError, match=r"not a file|directory"):
        read_bytes(path)
    with pytest.raises(OSError, match=r"not a file|directory"):
        open_own(path)


def test_a_device_is_not_replaced():
    with pytest.raises(ZooError, match="it is a FIFO or a device, not a file"):
        write_file(io.BytesIO(b"1"), run_dir.Path("/dev/null"))


def test_files_that_a_run_begins_with_follow_no_link(folder, target, zoo):
    (folder / "checkpoints").mkdir()
    for name in ("recipe.yaml", "environment.json", "start.json", "end.json"):
        link(folder / name, target)
    # a run that was killed before it saved anything is taken over
    words = ("trainer.fast_dev_run=true", "--run-dir", folder, "--resume", "auto")
    code, _, message = zoo("fit", "vit_comrope", *TINY, *words)
    assert code == 0, message
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_logs_follow_no_link(folder, target):
    link(folder / "train.log", target)
    with pytest.raises(OSError, match="link"), loggers.log_to_file(folder / "train.log"):
        pytest.fail("it was written")
    link(folder / "metrics.writing", target)
    log = MetricsFile(folder / "metrics.csv")
    log.log_metrics({"loss": 1.0}, 0)
    (folder / "metrics.csv").unlink()
    link(folder / "metrics.csv", target)
    with pytest.raises(OSError, match="link"):
        log.log_metrics({"loss": 1.0}, 1)
    run = make_run_dir(folder / "cell")
    link(run / OUTPUT, target)
    with pytest.raises(OSError, match="link"):
        CellProcess(run, folder, "zoo.comparison.cell:run_cell").start()


def test_an_attempt_without_a_message_has_not_that_of_the_one_before(folder, monkeypatch):
    run = make_run_dir(folder / "cell")
    (run / OUTPUT).write_text("zoo: table.csv: no such file\n")
    assert describe_failure(run, 4) == "exit code 4: table.csv: no such file"

    class Process:
        def __init__(self, **given):
            pass

        def start(self):
            pass

    monkeypatch.setattr(
        "zoo.launch.executor.get_context", lambda _: type("Context", (), {"Process": Process})()
    )
    CellProcess(run, folder, "zoo.comparison.cell:run_cell").start()
    assert describe_failure(run, -9) == "ended by signal 9"
    with (run / OUTPUT).open("a") as output:
        output.write("zoo: other.csv: empty\n")
    assert describe_failure(run, 4) == "exit code 4: other.csv: empty"
