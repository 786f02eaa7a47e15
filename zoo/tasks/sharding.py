"""The sharding of a model's weights among processes (FSDP2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

from zoo.attention.tokens import Tokens, upcast

# Sharding searches the arguments and results of blocks for tensors, and must know how to look into
# Tokens.
torch.export.register_dataclass(Tokens)


@dataclass(frozen=True)
class Sharding:
    """How weights are sharded.

    Attributes:
        dtype: The dtype in which the weights of blocks are gathered and used; None: their own.
            Gradients are reduced in float32.
        reshard_after_forward: Drop the gathered weights of a block after its forward pass and
            gather them again for its backward pass.
        timeout: Seconds that a process waits for the others of a mesh; None: torch's default.
    """

    dtype: torch.dtype | None = None
    reshard_after_forward: bool = True
    timeout: float | None = None


def shard(model: nn.Module, mesh: DeviceMesh, sharding: Sharding = Sharding()) -> None:
    """Shard the weights of a model among the devices of a mesh (FSDP).

    Weights that are sharded already are not changed. A block is gathered while it is computed;
    parameters outside of blocks, including those of encodings, are gathered for the whole step, in
    their own dtype, because positions are large. A parameter without dimensions cannot be sharded,
    so each process has all of it. The weights are those of rank 0, which holds the full model in
    CPU memory. No device holds more than its shards and one block. Parameter names do not change.

    Args:
        model: A model with blocks.
        mesh: A mesh of one dimension; of two, weights are sharded along the second one and
            replicated along the first one (HSDP).
        sharding: How to shard.
    """
    if isinstance(model, FSDPModule):
        reshard(model)
        return
    # Keep the weights of rank 0 in CPU memory, shard an empty model, and broadcast them into it.
    is_first = mesh.get_rank() == 0
    weights: dict[str, Any] = model.state_dict() if is_first else {}
    model.to("meta")
    scalars = {weight for weight in model.parameters() if weight.dim() == 0}
    # Inputs keep their dtype: positions are among them.
    policy = MixedPrecisionPolicy(
        sharding.dtype, sharding.dtype and torch.float32, cast_forward_inputs=False
    )
    for block in model.blocks:  # type: ignore[union-attr]
        if sharding.dtype is not None:
            for module in block.modules():
                # The kernels of norms take no weights of fewer bits than their input.
                if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                    _mix_in(module, _UpcastsWeights)
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=sharding.reshard_after_forward,
            ignored_params=scalars,
        )
    fully_shard(model, mesh=mesh, ignored_params=scalars)
    model.to_empty(device=mesh.device_type)
    _replicate_scalars(model, mesh)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)


def reshard(model: nn.Module) -> None:
    """Drop gathered weights, which an evaluation leaves behind: they are copies of the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def set_timeout(mesh: DeviceMesh, seconds: float | None) -> None:
    """Limit the time of collectives in the process groups of a mesh, which has no such option."""
    if seconds is not None:
        for group in mesh.get_all_groups():
            _set_pg_timeout(timedelta(seconds=seconds), group)


class _HasScalars(nn.Module):
    """A module with replicated parameters without dimensions, which compute as plain tensors."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if isinstance(value, DTensor) and value.dim() == 0:
            # FSDP averages gradients over processes, and so does this.
            return value.to_local(grad_placements=[Partial("avg")] * value.device_mesh.ndim)
        return value


class _UpcastsWeights(nn.Module):
    """A norm that computes in float32 with weights that were gathered in fewer bits."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return upcast(value) if isinstance(value, nn.Parameter) else value


def _replicate_scalars(model: nn.Module, mesh: DeviceMesh) -> None:
    """Replicate the parameters without dimensions over the processes, and average gradients."""
    replicas: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        scalars = {
            name: weight
            for name, weight in module.named_parameters(recurse=False)
            if weight.dim() == 0
        }
        for name, weight in scalars.items():
            if weight not in replicas:
                # One optimizer has all parameters, so all of them are of one class.
                replica = distribute_tensor(weight.detach(), mesh, [Replicate()] * mesh.ndim)
                replicas[weight] = nn.Parameter(replica, requires_grad=weight.requires_grad)
                if weight.requires_grad:
                    replicas[weight].register_post_accumulate_grad_hook(_average_gradient)
            module.register_parameter(name, replicas[weight])
        if scalars:
            _mix_in(module, _HasScalars)


def _mix_in(module: nn.Module, mixin: type[nn.Module]) -> None:
    """Put a class before that of a module, whose name stays, as `fully_shard` does."""
    cls = type(module)
    module.__class__ = type(cls.__name__, (mixin, cls), {"__module__": cls.__module__})


def _average_gradient(weight: Tensor) -> None:
    gradient = weight.grad
    if isinstance(gradient, DTensor):
        whole = [Replicate()] * gradient.device_mesh.ndim
        weight.grad = gradient.redistribute(placements=whole)
