"""What is launched, whatever the cluster, and the interface of launchers."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SECONDS_TO_SAVE = 180
"""Time that a run has to save its state before it is killed."""

PREAMBLE = """\
cd {folder} || exit 1
export PATH=${{ZOO_BIN:-{programs}}}:$PATH # where zoo and torchrun are
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that continues where it was stopped."""

    name: str
    arguments: tuple[str, ...]
    """The words after `zoo`."""
    run_dir: str
    nodes: int
    devices: int
    """Devices on each node: GPUs, or processes on the CPU."""
    gpus: bool
    cpus: int
    """CPUs for each process."""
    folder: Path
    """Working directory."""
    programs: Path
    """Folder of the programs zoo and torchrun."""

    @property
    def title(self) -> str:
        """The name in characters that no scheduler or shell interprets."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "run"

    @property
    def preamble(self) -> str:
        """The lines of a shell script that come before the run itself."""
        folder, programs = shlex.quote(str(self.folder)), shlex.quote(str(self.programs))
        return PREAMBLE.format(folder=folder, programs=programs)

    @property
    def command(self) -> str:
        """`arguments`, quoted for a shell."""
        return shlex.join(self.arguments)


class Launcher(Protocol):
    """A member of `zoo/launch`; its keyword-only arguments are options of `zoo launch`."""

    def write_script(self, job: Job) -> str:
        """Return the script that starts a job, and continues it when it is started again."""
        ...

    def format_submission(self, file: str, job: Job) -> str:
        """Return the command that runs the script `file`, which is quoted for a shell."""
        ...
