"""Training with sharded weights (FSDP2): its checkpoints are one file, or a folder of shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from zoo.run import shard_files
from zoo.run.checkpoint import is_sharded
from zoo.run.shard_files import LIVE, OPTIMIZERS, WEIGHTS

WHOLE = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
"""Options to load what rank 0 has as a whole."""


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2, whose checkpoints any number of processes can read, with any strategy.

    Args:
        processes: Number of processes.
        replicas: Copies of the sharded weights (HSDP); a divisor of `processes`.
        writes_shards: Whether a checkpoint is a folder to which each process writes its shards.
    """

    def __init__(self, processes: int, replicas: int = 1, *, writes_shards: bool = False) -> None:
        # Without copies, the mesh of Lightning has one dimension of size 1.
        sizes = (replicas, processes // replicas) if replicas > 1 else (processes, 1)
        super().__init__(*sizes, save_distributed_checkpoint=writes_shards)
        self.writes_shards = writes_shards

    def gather_weights(self) -> dict[str, Any]:
        """Return all weights on rank 0, and nothing elsewhere. Every process must call it."""
        assert self.model is not None
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(self.model, options=options)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer: shards by name, or on rank 0 all of it by number."""
        assert self.model is not None
        options = StateDictOptions(full_state_dict=not self.writes_shards, cpu_offload=True)
        state = get_optimizer_state_dict(self.model, _unwrap(optimizer), options=options)
        if self.writes_shards or self.global_rank > 0:
            return state
        return shard_files.number_parameters(state)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint. Every process must call it."""
        path = Path(self.broadcast(str(filepath)))
        if self.writes_shards:
            shard_files.write_shards(checkpoint, path, self.global_rank, _gather)
        elif self.global_rank == 0:
            self.checkpoint_io.save_checkpoint(checkpoint, path)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load weights and states of optimizers, and return the rest of a checkpoint.

        Weights under training that an average stands for stay in it, whole or in shards.
        """
        path = Path(self.broadcast(str(checkpoint_path)))
        assert self.model is not None
        if is_sharded(path):
            return self._load_shards(path, self.model)
        content: dict[str, Any] = torch.load(path, mmap=True, map_location="cpu", weights_only=True)
        set_model_state_dict(self.model, content.pop(WEIGHTS), options=WHOLE)
        for optimizer, state in zip(self.optimizers, content.pop(OPTIMIZERS, []), strict=False):
            named = shard_files.name_parameters(state, self._name_parameters(optimizer))
            set_optimizer_state_dict(self.model, optimizer, optim_state_dict=named, options=WHOLE)
        return content

    def _load_shards(self, path: Path, model: nn.Module) -> dict[str, Any]:
        content = shard_files.read_plain(path)
        entries: dict[str, Any] = {WEIGHTS: get_model_state_dict(model)}
        if LIVE in content:
            entries[LIVE] = {name: _copy(weight) for name, weight in entries[WEIGHTS].items()}
        states = [get_optimizer_state_dict(model, _unwrap(one)) for one in self.optimizers]
        if states:
            entries[OPTIMIZERS] = states
        shard_files.load_shards(path, entries)
        set_model_state_dict(model, entries[WEIGHTS])
        stored = content.pop(OPTIMIZERS, [])
        for optimizer, state, rest in zip(self.optimizers, states, stored, strict=False):
            # numbers that are no tensors, such as learning rates, are in the rest
            named = {"state": state["state"], "param_groups": rest["param_groups"]}
            set_optimizer_state_dict(model, _unwrap(optimizer), optim_state_dict=named)
        return content | {LIVE: entries[LIVE]} if LIVE in content else content

    def _name_parameters(self, optimizer: Optimizer) -> list[str]:
        """List the names of an optimizer's parameters in the order of its groups."""
        assert self.model is not None
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        groups = _unwrap(optimizer).param_groups
        return [names[parameter] for group in groups for parameter in group["params"]]


def gather_weights(strategy: Any) -> Mapping[str, Any]:
    """Return the weights under training: all of them, on rank 0 where they are sharded."""
    if isinstance(strategy, ShardedStrategy):
        return strategy.gather_weights()
    weights: Mapping[str, Any] = strategy.lightning_module_state_dict()
    return weights


def _unwrap(optimizer: Any) -> Optimizer:
    """Return torch's optimizer, which Lightning may have wrapped."""
    found: Optimizer = getattr(optimizer, "_optimizer", optimizer)
    return found


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def _copy(weight: Any) -> Any:
    return weight.detach().clone() if isinstance(weight, Tensor) else weight
