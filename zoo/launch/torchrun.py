"""torchrun: a script to start on each node, by hand or by a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from zoo.launch.launch import SECONDS_TO_SAVE, Job
from zoo.options import Between
from zoo.registry import register

TEMPLATE = """\
#!/usr/bin/env bash
# Written by `zoo launch torchrun`. Whenever it is started, the run continues where it was stopped.

{preamble}export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={grace} # seconds to save the state before torchrun kills

exec torchrun --nnodes={nodes} --nproc-per-node={devices} --rdzv-backend=c10d --rdzv-id=zoo-{title} \\
    --rdzv-endpoint="{master}:{port}" --max-restarts={restarts} \\
    -m zoo {command}
"""
ONE_NODE = "${MASTER:-localhost}"
SEVERAL_NODES = "${MASTER:?must name one of the nodes, the same on all of them}"


@register
@dataclass(kw_only=True)
class TorchrunLauncher:
    """The same script on each node; $MASTER names the node of the rendezvous."""

    port: Annotated[int, Between(1024, 65_535)] = 29_500
    """Port of the node that $MASTER names."""
    restarts: Annotated[int, Between(0)] = 3
    """Restarts of all processes after one of them fails."""

    def write_script(self, job: Job) -> str:
        """Return a script for each node."""
        return TEMPLATE.format(
            preamble=job.preamble,
            grace=SECONDS_TO_SAVE,
            nodes=job.nodes,
            devices=job.devices,
            title=job.title,
            port=self.port,
            master=ONE_NODE if job.nodes == 1 else SEVERAL_NODES,
            restarts=self.restarts,
            command=job.command,
        )

    def format_submission(self, file: str, job: Job) -> str:
        """Return the command that starts a script, on one node or on each of several."""
        if job.nodes == 1:
            return f"bash {file}"
        return f"MASTER=NODE bash {file}    on each of {job.nodes} nodes"
