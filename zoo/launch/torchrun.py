"""torchrun: the script to start on each node, by hand or by whatever starts programs on nodes."""

from __future__ import annotations

from typing import Annotated

from zoo.launch.job import GRACE, Job
from zoo.registry import Between, register

TEMPLATE = """\
#!/usr/bin/env bash
# Written by `zoo launch torchrun`. However often it is started, the run goes on where it was stopped.

{start}export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={grace} # seconds to save the state in before torchrun kills

exec torchrun --nnodes={nodes} --nproc-per-node={devices} --rdzv-backend=c10d --rdzv-id=zoo-{title} \\
    --rdzv-endpoint="{master}:{port}" --max-restarts={restarts} \\
    -m zoo {command}
"""
ALONE, TOGETHER = (
    "${MASTER:-localhost}",
    "${MASTER:?must name one of the nodes, the same on all of them}",
)


@register
class TorchrunLauncher:
    """The same script on each node, with $MASTER naming one of them, which is met on `port`.

    Where a process fails, all are started again, up to `restarts` times, whatever it failed of.
    """

    def __init__(
        self,
        *,
        port: Annotated[int, Between(1024, 65_535)] = 29_500,
        restarts: Annotated[int, Between(0)] = 3,
    ) -> None:
        self.port, self.restarts = port, restarts

    def write_script(self, job: Job) -> str:
        return TEMPLATE.format(
            start=job.preamble,
            grace=GRACE,
            nodes=job.nodes,
            devices=job.devices,
            title=job.title,
            port=self.port,
            master=ALONE if job.nodes == 1 else TOGETHER,
            restarts=self.restarts,
            command=job.command,
        )

    def format_submission(self, file: str, job: Job) -> str:
        return (
            f"bash {file}"
            if job.nodes == 1
            else f"MASTER=NODE bash {file}    on each of {job.nodes} nodes"
        )
