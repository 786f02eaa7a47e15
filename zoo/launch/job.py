"""What is to be launched, whatever the engine, and what an engine makes of it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

GRACE = 180  # seconds that a run has to save its state before it is killed
START = """\
cd {folder} || exit 1
export PATH=${{ZOO_BIN:-{programs}}}:$PATH # where zoo and torchrun are
"""


@dataclass(frozen=True)
class Job:
    """A run that goes on where it was stopped. `arguments` are the words after `zoo`."""

    name: str
    arguments: tuple[str, ...]
    nodes: int
    devices: int  # on each node
    gpus: bool  # what the devices are; else processes on the CPU
    cpus: int  # that each process has use for
    folder: Path  # where it starts
    programs: Path

    @property
    def title(self) -> str:
        """The name in letters that no scheduler or shell takes for anything else."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "run"

    @property
    def preamble(self) -> str:
        """The lines of a shell that come before the run itself."""
        return START.format(
            folder=shlex.quote(str(self.folder)), programs=shlex.quote(str(self.programs))
        )

    @property
    def command(self) -> str:
        """`arguments` as a shell reads them."""
        return shlex.join(self.arguments)


class Launcher(Protocol):
    """A member of `zoo/launch`; its keyword-only arguments are options of `zoo launch`."""

    def write_script(self, job: Job) -> str:
        """The script that starts a job, and starts it again."""
        ...

    def format_submission(self, file: str, job: Job) -> str:
        """The command that runs the script in a file, whose name is quoted already."""
        ...
