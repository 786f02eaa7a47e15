"""Several processes as a user starts them: with torchrun, or by zoo itself."""

import json
import signal
import subprocess
import sys
import time

import pytest
from tiny import TINY

from zoo import config
from zoo.errors import AlreadyReported
from zoo.run import checkpoint, processes

TWO = ["trainer.devices=2", "trainer.max_epochs=300", "--run-dir", "run"]


def test_torchrun_starts_a_run_that_one_process_can_evaluate(zoo):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "-m",
        "zoo",
        "fit",
        "vit_comrope",
    ]
    done = subprocess.run(
        [*command, *TINY, "--run-dir", "run", "--json"], capture_output=True, text=True, check=True
    )
    message, (_, again, _) = (
        json.loads(done.stdout),
        zoo("eval", "run", "--json", "trainer.accelerator=cpu"),
    )
    assert message["metrics"] == pytest.approx(json.loads(again)["metrics"], abs=1e-6)
    assert (
        done.stderr.count("Run directory") == 2
    )  # at the beginning and at the end, by one process


@pytest.mark.nightly
def test_a_signal_to_zoo_reaches_the_processes_it_started(process, tmp_path):
    run = process("fit", "vit_comrope", *TINY, *TWO)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    while not last.exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    _, message = run.communicate(timeout=60)
    assert run.returncode == 143, message
    assert message.count("stopped by SIGTERM") == 1
    assert checkpoint.read(last)["global_step"] > 0


def test_the_code_that_says_most_is_that_of_the_run():
    assert processes.choose_exit_code([-15, 1, 4]) == 4
    assert processes.choose_exit_code([143, 5]) == 5
    assert processes.choose_exit_code([143, 1]) == 1
    assert processes.choose_exit_code([143, 143]) == 143
    assert processes.choose_exit_code([1, -15]) == processes.choose_exit_code([-9, -15]) == 1


@pytest.mark.nightly
def test_one_that_fails_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = config.load("vit_comrope")
    options = {"checkpoint": "nowhere.ckpt", "to": None}
    with pytest.raises(AlreadyReported) as message:
        processes.run_in_processes(2, "evaluate", recipe, options)
    assert message.value.code == 5


def test_nodes_without_a_launcher_are_refused(zoo):
    code, _, message = zoo("fit", "vit_comrope", *TINY, "trainer.num_nodes=4")
    assert code == 2
    assert "trainer.num_nodes: 4 nodes, but no launcher says which node this is" in message
