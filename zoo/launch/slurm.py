"""SLURM: a script for sbatch that requeues itself at its time limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zoo.errors import OptionError
from zoo.launch.launch import SECONDS_TO_SAVE, Job
from zoo.options import Count
from zoo.registry import register

# SLURM may send its signal so many seconds early
EARLY_SECONDS = 60
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
TEMPLATE = """\
#!/usr/bin/env bash
# Written by `zoo launch slurm`. Whenever it is submitted, the run continues where it was stopped.
{options}

{preamble}
export OMP_NUM_THREADS={cpus} # of each process, also where SLURM binds none to its CPUs
# Lightning takes the ranks, the first node and a port from SLURM's own variables.
srun --kill-on-bad-exit=1 --cpus-per-task={cpus} \\
    zoo {command}
code=$?

if [ "$code" -eq 143 ]; then # it has saved its state, before the time limit or to make room
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code" # any other error would come again: 2 recipe, 3 not finite, 4 data, 5 checkpoint
"""


@register
@dataclass(kw_only=True)
class SlurmLauncher:
    """One task per device. The run saves its state three minutes before its time limit."""

    time: str = "24:00:00"
    """Time limit in the format of sbatch; the job is then requeued and continues."""
    partition: str | None = None
    """Partition of the cluster; null: the default of the cluster."""
    account: str | None = None
    """Account that the job is charged to; null: the default of the cluster."""
    cpus: Count | None = None
    """CPUs of each process; null: one, plus one per data worker."""

    def __post_init__(self) -> None:
        reserved = SECONDS_TO_SAVE + EARLY_SECONDS
        if parse_time_limit(self.time) <= reserved:
            message = f"{self.time} leaves no time to train: {reserved} seconds are for saving"
            raise OptionError("time", message)
        for key, word in (("partition", self.partition), ("account", self.account)):
            if word is not None and not re.fullmatch(r"[\w.,:@+-]+", word):
                raise OptionError(key, f"{word!r} is not a name that SLURM accepts")

    def write_script(self, job: Job) -> str:
        """Return a script for sbatch."""
        cpus = self.cpus or job.cpus
        options = "\n".join(f"#SBATCH --{option}" for option in self._list_options(job, cpus))
        return TEMPLATE.format(
            options=options, preamble=job.preamble, cpus=cpus, command=job.command
        )

    def format_submission(self, file: str, job: Job) -> str:
        """Return the command that submits a script."""
        return f"sbatch {file}"

    def _list_options(self, job: Job, cpus: int) -> list[str]:
        values = {
            "job-name": f"zoo-{job.title}",
            "nodes": job.nodes,
            "ntasks-per-node": job.devices,
            "gpus-per-node": job.devices if job.gpus else None,
            "cpus-per-task": cpus,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "signal": f"TERM@{SECONDS_TO_SAVE}",
            # a requeued job goes on in the same file
            "open-mode": "append",
            "output": f"zoo-{job.title}-%j.out",
        }
        stated = [f"{key}={value}" for key, value in values.items() if value is not None]
        return ["requeue", *stated]


def parse_time_limit(text: str) -> int:
    """Return the seconds of a time limit of sbatch: m, m:s, h:m:s, d-h, d-h:m or d-h:m:s.

    Raises:
        OptionError: It has none of these forms.
    """
    match = TIME.fullmatch(text)
    if match is None:
        message = f"{text!r} is not a time limit; write hours:minutes:seconds, or days-hours"
        raise OptionError("time", message)
    parts = [int(match[name]) for name in ("first", "second", "third") if match[name]]
    units = (3600, 60, 1) if match["days"] or len(parts) == 3 else (60, 1)
    seconds = sum(part * unit for part, unit in zip(parts, units, strict=False))
    return 86_400 * int(match["days"] or 0) + seconds
