"""Memory that runs out, output that nobody reads, folders that may not be written: one line, and a code."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tiny import TINY, language
from untrained import write_checkpoint

import zoo as api
from zoo.cli import main
from zoo.errors import ZooError
from zoo.models.decoder import Decoder
from zoo.models.vit import ViT
from zoo.run import checkpoint
from zoo.utils import explain_memory, is_out_of_memory

CPU = "trainer.accelerator=cpu"
ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"
)
SHORT = [
    RuntimeError(ALLOCATOR),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    MemoryError("Unable to allocate 7.45 GiB for an array"),
    MemoryError(),
]


def test_want_of_memory_is_told_from_other_errors():
    assert all(map(is_out_of_memory, SHORT))
    assert is_out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    for other in (RuntimeError("shapes"), ValueError("out of memory"), OSError(errno.ENOSPC, "")):
        assert not is_out_of_memory(other)
        with pytest.raises(type(other)), explain_memory():
            raise other


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    words = [*language(folder / "letters.txt"), "evaluate.lengths=null"]
    write_checkpoint(folder / "run", "lm_rope", words)
    return folder / "run"


@pytest.fixture
def without_memory(monkeypatch):
    """The passes of all models, but those on the meta device, fail."""

    def use(error):
        for cls in (Decoder, ViT):
            forward = cls.forward

            @wraps(forward)
            def fail(self, *inputs, _forward=forward, **more):
                if next(self.parameters()).device.type == "meta":
                    return _forward(self, *inputs, **more)
                raise error

            monkeypatch.setattr(cls, "forward", fail)

    return use


COMMANDS = {
    "fit": (["fit", "vit_comrope", *TINY, "--run-dir", "r"], "data.batch_size=32, take about half"),
    "eval": (["eval", "RUN", CPU], "data.batch_size=4, take about half"),
    "generate": (["generate", "RUN", "prompt=a"], "a shorter prompt, or fewer tokens"),
    "predict": (["predict", "RUN", "words.txt"], "data.batch_size, take less"),
    "diagnose": (["diagnose", "RUN", CPU], "fewer samples, queries or layers"),
    "extend": (["extend", "RUN", CPU, "methods=[none]"], "data.batch_size"),
    "atlas": (["atlas", "RUN", CPU], "fewer samples or queries, or a shorter length"),
}


@pytest.mark.parametrize("error", SHORT[::2], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_would_be_smaller(name, error, run, zoo, without_memory):
    words, remedy = COMMANDS[name]
    Path("words.txt").write_text("abc" * 40)
    without_memory(error)
    code, _, message = zoo(*(run if word == "RUN" else word for word in words))
    assert code == 1
    assert f"out of memory: {str(error).splitlines()[0]}" in message
    assert remedy in message
    assert "Traceback" not in message


def test_a_training_names_activation_checkpointing_and_its_directory(zoo, without_memory):
    without_memory(SHORT[0])
    _, _, message = zoo("fit", "vit_comrope", *TINY, "data.batch_size=1", "--run-dir", "r")
    assert "smaller samples, with data.size, and a smaller model take less" in message
    assert "so does trainer.activation_checkpointing=true; r holds what was saved before" in message


def test_a_file_is_not_blamed_for_want_of_memory(run, zoo, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(checkpoint.torch, "load", fail)
    code, _, message = zoo("eval", run)
    assert (code, "best.ckpt" in message, "out of memory" in message) == (1, False, True)
    with pytest.raises(ZooError, match="out of memory: MemoryError"):
        api.load(run)


@pytest.mark.parametrize("command", ["list", "show", "doctor", "new"])
def test_commands_without_a_model_say_so_too(command, zoo, monkeypatch):
    def fail(known):
        raise MemoryError

    module = import_module(f"zoo.cli.{command}")
    monkeypatch.setattr(module, "COMMAND", replace(module.COMMAND, run=fail))
    words = {"show": ["rope"], "new": ["encoding", "mine"]}.get(command, [])
    code, _, message = zoo(command, *words)
    assert (code, message.startswith("zoo: out of memory: MemoryError; ")) == (1, True)


def test_a_worker_that_was_killed_is_told_as_want_of_memory(run, zoo, without_memory):
    without_memory(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "))
    code, _, message = zoo("eval", run, CPU)
    assert (code, "with data.workers=0" in message) == (1, True)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, "zoo: stopped by SIGINT"),
        (BrokenPipeError(), 0, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "zoo: input or output: No space"),
        (PermissionError(errno.EACCES, "Permission denied", "f"), 1, "zoo: f: Permission denied"),
        (OSError(errno.EROFS, "Read-only file system", "f"), 1, "zoo: f: Read-only file system"),
    ],
)
def test_failures_of_the_system_are_a_line_and_a_code(error, code, text, run, zoo, without_memory):
    without_memory(error)
    # Lightning handles interrupts of a test in its own way
    verbs = ("generate",) if isinstance(error, KeyboardInterrupt) else ("generate", "eval")
    for verb in verbs:
        found, _, message = zoo(verb, run, *(["prompt=a"] if verb == "generate" else [CPU]))
        assert (found, message.strip().startswith(text)) == (code, True), (verb, message)
        assert "Traceback" not in message


PROGRAM = """
import sys
from zoo.cli import main
sys.argv[1:] = {words}
sys.exit(main())
"""


def begin(words, **streams):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(words=words)], env=environment, **streams
    )


def test_output_that_cannot_be_written_fails_and_output_that_nobody_reads_does_not():
    with open("/dev/full", "w") as full:
        failed = begin(["list", "tasks"], stdout=full, stderr=subprocess.PIPE)
        unread = begin(["list", "tasks"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        unread.stdout.close()
        message = failed.communicate()[1].decode()
        with unread.stderr:
            errors = unread.stderr.read().decode()
        assert (failed.returncode, message.count("\n")) == (1, 1)
        assert message.startswith("zoo: ")
        assert message.endswith("put: No space left on device\n")
        assert (unread.wait(), errors) == (0, "")


def test_errors_that_nobody_reads_keep_their_code(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stderr", Closed())
    assert main(["list", "nonsense"]) == 2
