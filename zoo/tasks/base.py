"""The base class of tasks, and how processes share the weights of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

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
from zoo.options import Choice, Choices

# sharding looks for tensors in the arguments and results of blocks
torch.export.register_dataclass(Tokens)


Metrics = Annotated[tuple[Choice, ...], Choices("metrics", may_be_empty=True)]
"""Metrics that a recipe names, beside those of its task."""


class Optimizer(Protocol):
    """A member of `zoo/optim`."""

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Create optimizer and schedule in Lightning's form, for so many training steps."""
        ...


class Application(Protocol):
    """What a trained task is used for; `zoo.load` provides it."""

    def predict(self, task: Task, inputs: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Predict for inputs."""
        ...

    def generate(self, task: Task, prompt: str, options: Mapping[str, Any]) -> str:
        """Continue a text."""
        ...


class Task(L.LightningModule):
    """A model in training.

    Args:
        model: The model.
        optim: Creates the optimizer.
        spec: The facts of the data that the model was built for.
    """

    monitor: str = ""
    """Metric that chooses the best checkpoint; empty for a task that has none."""

    mode: str = "min"
    """Its better end, max or min."""

    longest_test_window = 0
    """Tokens in a window of the test data, which may be longer than those of training."""

    confusion: list[list[int]] | None = None
    """Samples of the last test by label (rows) and predicted class (columns), if there are any."""

    application: Application | None = None
    """What `predict` and `generate` do; None for a task that `zoo.load` did not return."""

    def __init__(self, model: nn.Module, optim: Optimizer, spec: DataSpec) -> None:
        super().__init__()
        self.model, self.optim, self.spec = model, optim, spec

    def configure_model(self) -> None:
        """Shard the weights where a strategy does so; Lightning calls it before each loop."""
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        """Create the optimizer and its schedule."""
        return self.optim.configure(self.model, int(self.trainer.estimated_stepping_batches))

    def inputs(self, batch: Any) -> tuple[Tensor | None, ...]:
        """Return the arguments of the model for a batch of an evaluation.

        Raises:
            OptionError: The task does not define them.
        """
        problem = f"{type(self).__name__} does not define the inputs of its model"
        raise OptionError("name", problem)

    def predict(self, inputs: Any, **options: Any) -> list[dict[str, Any]]:
        """Predict with a task that `zoo.load` returned.

        Args:
            inputs: Of images: normalised images [B, C, H, W] or [C, H, W], or paths and pictures of
                Pillow, one or a list, which are prepared as in evaluation. Of texts with labels:
                token ids [B, N] padded with -1, or texts, or paths. Of language models: paths.
            **options: Those of `zoo predict`: `top`.

        Returns:
            For each input {label, probability, top: [{label, probability}, ...]}, for a file also
            its path; of a language model its path, tokens, loss and further measures.

        Raises:
            DataError: An input cannot be read.
            RecipeError: The task predicts nothing by itself, or an option is wrong.
        """
        return self._find_application().predict(self, inputs, options)

    def generate(self, prompt: str, **options: Any) -> str:
        """Continue a text with a language model that `zoo.load` returned.

        Args:
            prompt: The text to continue.
            **options: Those of `zoo generate`: tokens, temperature, top_k, top_p, stop, seed.

        Returns:
            The continuation, without the prompt.

        Raises:
            RecipeError: The model writes no text, or an option is wrong.
        """
        return self._find_application().generate(self, prompt, options)

    def _find_application(self) -> Application:
        if self.application is None:
            raise OptionError("task", "only a task that zoo.load returned predicts and generates")
        return self.application

    def batch_state(self) -> dict[str, Any]:
        """Return what this process keeps between training batches beside weights, as plain data."""
        return {}

    def load_batch_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `batch_state` returned."""
        return

    def average_over_processes(self, number: Tensor) -> Tensor:
        """Average a number of each process's part of a batch over all processes."""
        if not distributed.is_initialized():
            return number
        total = number.to(torch.get_default_dtype(), copy=True)
        distributed.all_reduce(total)
        return total / distributed.get_world_size()


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a model's weights among the devices of a mesh (FSDP).

    Sharded weights stay as they are.

    A block is gathered while it is computed; what is outside of blocks, encodings included, during
    the whole step. The weights are those of rank 0, which holds the whole model in CPU memory; no
    device ever has more than its parts and a block. Parameter names do not change.
    """
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        return
    is_first = mesh.get_rank() == 0
    weights: dict[str, Any] = model.state_dict() if is_first else {}
    model.to("meta")
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=mesh.device_type)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
