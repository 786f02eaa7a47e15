"""SLURM: a script for sbatch that puts itself back into the queue where it was stopped for want of time."""

from __future__ import annotations

import re
from typing import Annotated

from zoo.errors import OptionError
from zoo.launch.job import GRACE, Job
from zoo.registry import Between, register

EARLY = 60  # seconds that SLURM's signal may come before its time
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
TEMPLATE = """\
#!/usr/bin/env bash
# Written by `zoo launch slurm`. However often it is submitted, the run goes on where it was stopped.
{options}

{start}
export OMP_NUM_THREADS={cpus} # of each process, also where SLURM binds none to its processors
# Lightning takes the ranks, the first node and a port from SLURM's own variables.
srun --kill-on-bad-exit=1 --cpus-per-task={cpus} \\
    zoo {command}
code=$?

if [ "$code" -eq 143 ]; then # it has saved its state before the limit of time, or to make room
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code" # any other fault would come again: 2 recipe, 3 not finite, 4 data, 5 checkpoint
"""


@register
class SlurmLauncher:
    """One task for each device. The run is told to save its state three minutes before its `time` is over."""

    def __init__(
        self,
        *,
        time: str = "24:00:00",
        partition: str | None = None,
        account: str | None = None,
        cpus: Annotated[int, Between(1)] | None = None,
    ) -> None:
        if parse_time_limit(time) <= GRACE + EARLY:
            raise OptionError(
                "time",
                f"{time} leaves no time to train: the last {GRACE + EARLY} seconds are for saving",
            )
        for key, word in (("partition", partition), ("account", account)):
            if word is not None and not re.fullmatch(r"[\w.,:@+-]+", word):
                raise OptionError(key, f"{word!r} is no name that SLURM knows")
        self.time, self.partition, self.account, self.cpus = time, partition, account, cpus

    def write_script(self, job: Job) -> str:
        cpus = self.cpus or job.cpus
        options = "\n".join(f"#SBATCH --{option}" for option in self._options(job, cpus))
        return TEMPLATE.format(options=options, start=job.preamble, cpus=cpus, command=job.command)

    def format_submission(self, file: str, job: Job) -> str:
        return f"sbatch {file}"

    def _options(self, job: Job, cpus: int) -> list[str]:
        asked = {
            "job-name": f"zoo-{job.title}",
            "nodes": job.nodes,
            "ntasks-per-node": job.devices,
            "gpus-per-node": job.devices if job.gpus else None,
            "cpus-per-task": cpus,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "signal": f"TERM@{GRACE}",
            "open-mode": "append",
            "output": f"zoo-{job.title}-%j.out",
        }
        return [
            "requeue",
            *(f"{option}={value}" for option, value in asked.items() if value is not None),
        ]


def parse_time_limit(time: str) -> int:
    """A limit of time as sbatch reads it: m, m:s, h:m:s, d-h, d-h:m, d-h:m:s. Raises OptionError."""
    found = TIME.fullmatch(time)
    if found is None:
        raise OptionError(
            "time", f"{time!r} is no time; write hours:minutes:seconds, or days-hours"
        )
    days, *parts = (
        int(found[name]) if found[name] else None for name in ("days", "first", "second", "third")
    )
    counts = [part for part in parts if part is not None]
    units = (3600, 60, 1) if days is not None or len(counts) == 3 else (60, 1)
    return 86_400 * (days or 0) + sum(
        count * unit for count, unit in zip(counts, units, strict=False)
    )
