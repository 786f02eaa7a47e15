"""What every task has beside what Lightning asks of it, and what it asks of an optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import lightning as L
import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from zoo.attention.tokens import Tokens
from zoo.data.spec import DataSpec
from zoo.errors import OptionError

torch.export.register_dataclass(Tokens)  # sharding looks for tensors in what blocks take and give


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Have the processes of a mesh hold a part each of a model's weights, on their devices.

    A block is put together when it is computed; all that is outside of blocks, encodings included, during the whole step.
    The weights are those of the first process: it holds the whole model in its memory, the others only its shape, and no
    device ever has more than its parts and a block. Names stay as they are. Weights in shards are left alone.
    """
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        return
    first = mesh.get_rank() == 0
    weights: dict[str, Any] = model.state_dict() if first else {}
    model.to("meta")
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=mesh.device_type)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)


class Task(L.LightningModule):
    """A model under training. `monitor` names the metric that makes a checkpoint the best, `mode` its better end.

    `samples` are the facts that it was built for, and which other data has to adopt.
    """

    monitor: str
    mode: str  # max or min
    model: nn.Module
    samples: DataSpec
    longest_test_window: int = (
        0  # tokens of a window of the data of a test, which may be others than those of training
    )

    def configure_model(self) -> None:
        """Where a strategy keeps weights in shards, make them; Lightning asks before each training and each test."""
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh["data_parallel"])

    def inputs(self, batch: Any) -> tuple[Tensor | None, ...]:
        """What the model is called with for a batch of an evaluation. Raises OptionError where the task does not tell it."""
        raise OptionError(
            "name", f"{type(self).__name__.lower()} does not tell what its model is called with"
        )

    def batch_state(self) -> dict[str, Any]:
        """What this process carries from one training batch to the next beside the weights, as plain data."""
        return {}

    def load_batch_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `batch_state` gave."""
        return

    def average_over_processes(self, number: Tensor) -> Tensor:
        """The mean of a number that each process has of its own part of a batch."""
        if not distributed.is_initialized():
            return number
        total = number.to(torch.get_default_dtype(), copy=True)
        distributed.all_reduce(total)
        return total / distributed.get_world_size()


class Optimizer(Protocol):
    """A member of `zoo/optim`."""

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Optimiser and schedule in Lightning's form, for a training of so many steps."""
        ...
