"""Fully sharded data parallelism (FSDP2; Zhao et al. 2023, arXiv:2304.11277): each process holds a part of every weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from zoo.attention.tokens import Tokens

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
    for block in model.trunk.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=mesh.device_type)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
