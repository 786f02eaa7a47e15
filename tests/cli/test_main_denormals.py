"""Commands flush denormal numbers to zero; a Python program is told how."""

import importlib
import logging
import subprocess
import sys

import pytest
import torch
from PIL import Image

import zoo
from zoo.cli import main, worker
from zoo.cli.commands import COMMANDS
from zoo.cli.main import find_command
from zoo.comparison import cell
from zoo.errors import ZooError
from zoo.run import machine

COMPUTING = {
    "fit": ("zoo.api.training:fit", ["vit_comrope"]),
    "eval": ("zoo.api.evaluation:evaluate", ["run"]),
    "generate": ("zoo.evaluation.generate:generate", ["run"]),
    "predict": ("zoo.evaluation.predict:predict", ["run"]),
    "diagnose": ("zoo.api.evaluation:diagnose", ["run"]),
    "atlas": ("zoo.api.evaluation:atlas", ["run"]),
    "extend": ("zoo.api.evaluation:extend", ["run"]),
    "bench": ("zoo.api.tools:bench", ["rope"]),
    "compare": ("zoo.api.comparison:compare", ["vit_comrope"]),
    "compare suite=small": ("zoo.api.comparison:compare_suite", []),
    "audit": ("zoo.api.audit:audit", ["folder"]),
    "compare check": ("zoo.api.comparison:check_comparison", ["folder"]),
}
"""{command: (what it calls to compute, further words)}"""
OTHERS = {
    *("compare rebuild", "compare rank", "compare merge", "compare pack", "launch"),
    "compare claims",
    *("convert", "export", "list", "show", "diff", "new", "doctor"),
    "verify",  # laws are about all numbers
}
"""Commands that train, evaluate or measure nothing."""
SLOW = "This process computes denormal numbers"


@pytest.mark.parametrize("command", COMPUTING)
def test_a_command_flushes_before_it_computes(command, monkeypatch):
    flushed = []

    def compute(*arguments, **options):
        flushed.append(machine.are_denormals_flushed())
        raise ZooError("computed")

    place, words = COMPUTING[command]
    module, name = place.split(":")
    monkeypatch.setattr(importlib.import_module(module), name, compute)
    assert main([*command.split(), *words]) == ZooError.code
    assert flushed == [True]


def test_every_command_computes_or_does_not():
    computing = {command.removesuffix(" suite=small") for command in COMPUTING}
    assert computing | OTHERS == set(COMMANDS)
    declared = {name for name in COMMANDS if find_command(name).computes}
    assert declared == computing


def test_processes_that_commands_start_flush(monkeypatch, tmp_path):
    """Those of a training with several, and those of the cells of a comparison."""
    flushed = []

    def compute(*arguments):
        flushed.append(machine.are_denormals_flushed())
        torch.set_flush_denormal(False)

    monkeypatch.setattr(cell, "run_cell", compute)
    assert worker.run_cell(tmp_path, cell.WORK) == 0
    assert main(work=compute) == 0
    assert flushed == [True, True]


COUNTED = """
import logging
import sys
import torch
from PIL import Image

import zoo
import zoo.api.training
from zoo.cli import main
from zoo.run import machine

def multiply(size):
    products = torch.full((size,), 1e-30) * 1e-10
    return products.view(torch.int32).count_nonzero().item()

def fit(*arguments, **options):
    torch.set_num_threads(2)
    print(multiply(1_000_000))
    machine.check_denormals("cpu")
    sys.exit()

assert multiply(1) == 1, "importing zoo has changed how this process computes"
if sys.argv[1] == "late":
    torch.set_num_threads(2)
    multiply(1_000_000)
zoo.api.training.fit = fit
main(["fit", "vit_comrope"])
"""
"""Print the denormal numbers among a million products, as two threads compute them in `zoo fit`."""


@pytest.mark.parametrize(("when", "count"), [("early", 0), ("late", 500_000)])
def test_all_threads_of_a_command_flush(when, count):
    """Threads that exist before keep their mode: half of the products stay, and the user is told."""
    command = [sys.executable, "-c", COUNTED, when]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == f"{count}\n", done.stderr
    assert (SLOW in done.stderr) == bool(count)


def test_a_program_is_told_how_to_flush(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "zoo")
    machine.check_denormals("cpu")
    assert SLOW in caplog.messages[0]
    # asking changes nothing
    assert not machine.are_denormals_flushed()
    caplog.clear()

    machine.check_denormals("cuda")
    machine.flush_denormals()
    machine.check_denormals("cpu")
    assert machine.are_denormals_flushed()
    # where a processor cannot, nobody is told to
    torch.set_flush_denormal(False)
    monkeypatch.setattr(torch, "set_flush_denormal", lambda mode: False)
    machine.check_denormals("cpu")
    assert not caplog.messages


def test_every_function_that_computes_on_a_cpu_tells_a_program(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    overrides = {
        "model.dim": 16,
        "model.depth": 1,
        "model.heads": 2,
        "model.patch_size": 8,
        "trainer.max_steps": 1,
        "trainer.accelerator": "cpu",
        "diagnostics.every_n_steps": None,
    }
    Image.new("L", (16, 16)).save("picture.png")
    for compute in (
        lambda: zoo.fit("vit_none", overrides, run_dir=run, verbose=None),
        lambda: zoo.evaluate(run, verbose=None),
        lambda: zoo.predict(run, ["picture.png"], verbose=None),
        lambda: zoo.diagnose(run, verbose=None),
        lambda: zoo.atlas(run, verbose=None),
        lambda: zoo.bench(["rope"], shape="lm_toy", rounds=1, measures=["layer"], verbose=None),
    ):
        caplog.clear()
        caplog.set_level(logging.INFO, "zoo")
        compute()
        assert any(SLOW in message for message in caplog.messages)
