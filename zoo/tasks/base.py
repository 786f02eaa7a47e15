"""The base class of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import lightning as L
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor, distributed, nn

from zoo.data.spec import DataSpec
from zoo.errors import OptionError, ZooError
from zoo.options import Choice, Choices
from zoo.tasks.sharding import Sharding, set_timeout, shard
from zoo.tasks.target_weights import TargetWeights

Metrics = Annotated[tuple[Choice, ...], Choices("metrics", may_be_empty=True)]
"""Metrics that a recipe names, in addition to those of its task."""


class Optimizer(Protocol):
    """A factory of optimizers, as in `zoo/optim`."""

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Create optimizer and schedule in Lightning's form, for a number of training steps."""
        ...


class Application(Protocol):
    """Prediction and generation with a trained task, which `zoo.load` provides."""

    def predict(self, task: Task, inputs: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return predictions for inputs."""
        ...

    def generate(self, task: Task, prompt: str, options: Mapping[str, Any]) -> str:
        """Return the continuation of a prompt."""
        ...


class Task(L.LightningModule):
    """The base class of tasks: a model with its loss and metrics.

    Args:
        model: The model.
        optim: Creates the optimizer. A task that is only tested has None.
        spec: The facts of the data that the model was built for.
    """

    monitor: str = ""
    """Metric that selects the best checkpoint; empty if the task has none."""

    mode: str = "min"
    """Whether the largest ("max") or the smallest ("min") value of the metric is best."""

    weighs_targets: bool = False
    """True if equal numbers of samples may have unequal numbers of targets."""

    targets_per_sample: int = 1
    """The largest number of targets of a training sample."""

    num_targets: Tensor | None = None
    """Number of targets of the last batch, a scalar; None before the first one."""

    longest_test_window = 0
    """Number of tokens in the longest window of the test data, which may exceed the training
    length."""

    confusion: list[list[int]] | None = None
    """Numbers of samples of the last test by label (rows) and predicted class (columns)."""

    sample_losses: list[Tensor] | None = None
    """The sum of losses and the number of targets of each sample of a test, [2, B] for each batch.
    They are kept where somebody has set a list."""

    changed_at: tuple[int, int] | None = None
    """Steps and epochs done when the batch size changed; None if it did not."""

    sharding = Sharding()
    """How the strategy `fsdp` shards the weights."""

    has_data_baselines: bool = True
    """True if baselines of the data predict the targets of the task, so that their scores can be
    compared."""

    application: Application | None = None
    """Implements `predict` and `generate`. None for a task that `zoo.load` did not return."""

    def __init__(self, model: nn.Module, optim: Optimizer, spec: DataSpec) -> None:
        super().__init__()
        self.model, self.optim, self.spec = model, optim, spec
        self._target_weights: TargetWeights | None = None
        self._window_sums: Tensor | None = None
        self.batch_loss: Tensor | None = None
        """The loss of the last batch of training, a scalar."""
        """Sums of losses and of targets, [2], over the accumulated batches of a logged step."""

    def configure_model(self) -> None:
        """Shard the weights if the strategy does. Lightning calls it before each loop."""
        if self.device_mesh is not None:
            mesh = self.device_mesh
            set_timeout(mesh, self.sharding.timeout)
            # Lightning's mesh always has two dimensions, of which plain FSDP uses the first
            shard(self.model, mesh if mesh.size(1) > 1 else mesh["data_parallel"], self.sharding)

    def configure_optimizers(self) -> Any:
        """Create the optimizer and its schedule."""
        return self.optim.configure(self.model, self.count_planned_steps())

    def count_planned_steps(self) -> int:
        """Return the number of optimizer steps at the end of training."""
        planned = int(self.trainer.estimated_stepping_batches)
        epochs, most = self.trainer.max_epochs, self.trainer.max_steps
        if self.changed_at is None or epochs is None or epochs < 0:
            return planned
        # epochs before and after the change have different numbers of steps
        steps, done = self.changed_at
        batches = self.trainer.num_training_batches
        per_epoch = math.ceil(batches / self.trainer.accumulate_grad_batches)
        planned = steps + per_epoch * (epochs - done)
        # -1 is the value of Lightning for no limit
        return min(planned, most) if most > 0 else planned

    def inputs(self, batch: Any) -> tuple[Tensor | None, ...]:
        """Return the arguments of the model for an evaluation batch.

        Raises:
            OptionError: The task does not define them.
        """
        message = f"{type(self).__name__} does not define the inputs of its model"
        raise OptionError("name", message)

    def predict(self, inputs: Any, **options: Any) -> list[dict[str, Any]]:
        """Predict with a task that `zoo.load` returned.

        Args:
            inputs: For image classification: normalized images [B, C, H, W] or [C, H, W], or one or
                several paths or Pillow images, which are preprocessed as in evaluation. For text
                classification: token ids [B, N] padded with -1, strings, or paths. For points: a
                tuple of features [B, N, F], coordinates [B, N, P] and perhaps a mask [B, N], or
                paths. For language models: paths.
            **options: The option of `zoo predict`: `top`.

        Returns:
            For each input {label, probability, top: [{label, probability}, ...]} or {numbers}, and
            its path if it is a file. For each file of a language model its path, tokens, loss and
            other measures.

        Raises:
            DataError: An input cannot be read.
            RecipeError: The task cannot predict, or an option is wrong.
        """
        return self._find_application().predict(self, inputs, options)

    def features(self, images: Tensor, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Compute maps of the patches of images after some blocks of a vision transformer.

        Args:
            images: Normalized images [B, C, H, W] or [C, H, W], or videos with T before H, of any
                size that the patch divides.
            layers: Numbers of blocks from 0; negative ones count from the end.

        Returns:
            For each of the layers the output of the block as a map [B, D, h, w], before the final
            norm, without CLS and register tokens; see `ViT.features`.

        Raises:
            OptionError: The model has no patches, or there is no such layer.
        """
        compute = getattr(self.model, "features", None)
        if not callable(compute):
            message = f"{type(self.model).__name__} has no maps of patches"
            raise OptionError("model", f"{message}; vision transformers have")
        is_single = images.dim() == len(self.spec.shape)
        maps: list[Tensor] = compute(images[None] if is_single else images, layers)
        return maps

    def generate(self, prompt: str, **options: Any) -> str:
        """Continue a prompt with a language model that `zoo.load` returned.

        Args:
            prompt: The text to continue.
            **options: The options of `zoo generate`: tokens, temperature, top_k, top_p, stop, seed.

        Returns:
            The continuation, without the prompt.

        Raises:
            RecipeError: The model does not generate text, or an option is wrong.
        """
        return self._find_application().generate(self, prompt, options)

    def _find_application(self) -> Application:
        if self.application is None:
            raise OptionError("task", "only a task from zoo.load can predict and generate")
        return self.application

    def record_loss(self, loss: Tensor, samples: int, num_targets: Tensor | None = None) -> None:
        """Record the loss of a training batch; every training step has to call it.

        Where the step is logged, its last batch logs train/loss: the mean over the targets of all
        accumulated batches and of all processes.

        Args:
            loss: The mean loss of the batch over its targets, a scalar.
            samples: Number of samples in the batch.
            num_targets: Number of targets, or the sum of their weights, a scalar. None: a target
                for each sample.
        """
        self.batch_loss = loss = loss.detach()
        dtype = torch.promote_types(loss.dtype, torch.float32)  # half precision rounds numbers
        if num_targets is None:
            num_targets = torch.full_like(loss, samples, dtype=dtype)
        self.num_targets = count = num_targets.to(dtype)
        # other steps neither communicate nor pay for Lightning's bookkeeping
        if not self._is_window_logged():
            return
        if self._target_weights is None:
            # a step has one batch, or all of its batches have equal numbers of targets
            self.log("train/loss", self.average_over_processes(loss), batch_size=samples)
            return
        sums = torch.stack([loss * count, count])
        self._window_sums = sums if self._window_sums is None else self._window_sums + sums
        if self.completes_step():
            total, count = self.average_over_processes(self._window_sums)
            self._window_sums = None
            mean = total / torch.where(count == 0, 1, count)
            self.log("train/loss", mean, batch_size=samples)

    def completes_step(self) -> bool:
        """Return whether the optimizer steps after the current batch of training.

        It does so after the last of the batches that it accumulates, and of an epoch.
        """
        return self._trainer is not None and not self._trainer.fit_loop._should_accumulate()

    def is_step_logged(self) -> bool:
        """Return whether Lightning logs this batch of training: the last of each n-th step."""
        return self.completes_step() and self._is_window_logged()

    def _is_window_logged(self) -> bool:
        """Return whether Lightning logs the step to which this batch of training belongs."""
        trainer = self._trainer
        if trainer is None:
            return False
        is_last = trainer.global_step + 1 == trainer.max_steps
        return is_last or trainer._logger_connector.should_update_logs

    def on_train_start(self) -> None:
        """Prepare to weigh the batches of a step, if their numbers of targets may differ."""
        trainer: Any = self.trainer
        self._target_weights = self._window_sums = None
        # the last of the accumulated batches may be a short one
        is_weighed = trainer.accumulate_grad_batches > 1
        if trainer.world_size > 1:
            is_weighed |= self.weighs_targets or not trainer.datamodule.has_equal_shares
        if is_weighed:
            self._target_weights = TargetWeights(trainer.strategy.model)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients: those of a step are of the mean loss over all of its targets.

        Batches and processes of a step are weighed by their numbers of targets, so that any cutting
        of the same samples into batches, steps of as many samples and processes has the same
        gradients. In several processes, all gradients are NaN if a loss is not finite. Every
        process then finds the same gradients at fault, and none has to ask the others.
        """
        weights, weight = self._target_weights, torch.ones_like(loss)
        if self.trainer.world_size == 1 and weights is None:
            super().backward(loss, *args, **kwargs)
            return
        if weights is not None:
            if self.num_targets is None:
                raise ZooError(f"{type(self).__name__}.training_step does not call record_loss")
            # about 1: gradients of the sum over a batch would overflow float16
            weight = (self.num_targets * self._find_unit()).to(loss.dtype)
            # Lightning has divided the loss; half precision would round the sum of weights
            accumulated = self.trainer.accumulate_grad_batches
            weights.add(weight.to(self.num_targets.dtype) / accumulated)
        # a loss can be infinite while its gradients are finite; the factor 1 changes no bit
        factor = torch.where(loss.detach().isfinite(), weight, torch.nan).to(loss.dtype)
        loss.backward(factor, *args, **kwargs)
        if weights is not None and self.completes_step():
            weights.divide_gradients(self.parameters())

    def _find_unit(self) -> float:
        """Return about 1 / (targets of a batch), a power of two, which changes no digit."""
        loader: Any = self.trainer.train_dataloader
        samples = loader.epoch_sampler.global_batch_size / self.trainer.world_size
        return 2.0 ** -round(math.log2(samples * self.targets_per_sample))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients, also those of a fused optimizer in bf16-mixed.

        Lightning refuses to, because fused kernels may have to divide by a scale first. Only
        16-mixed has one, and `preflight` refuses that.
        """
        plugin = self.trainer.precision_plugin
        is_scaled = getattr(plugin, "scaler", None) is not None
        if is_scaled or not getattr(optimizer, "_step_supports_amp_scaling", False):
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )
            return
        algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
        Precision.clip_gradients(plugin, optimizer, gradient_clip_val or 0.0, algorithm)

    def batch_state(self) -> dict[str, Any]:
        """Return the state of this process between training batches, except weights, as plain data.

        A checkpoint stores it.
        """
        return {}

    def load_batch_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `batch_state` returned."""
        return

    def keep_sample_losses(self, losses: Tensor, counts: Tensor) -> None:
        """Keep the losses of the samples of a test batch, if somebody reads them.

        Args:
            losses: The sum of the losses of each sample [B].
            counts: The number of targets of each sample [B].
        """
        if self.sample_losses is not None:
            pair = torch.stack([losses.float(), counts.float()])
            self.sample_losses.append(pair.cpu().double())

    def average_over_processes(self, number: Tensor) -> Tensor:
        """Return the mean of a number over all processes. Every process must call it."""
        if not distributed.is_initialized():
            return number
        total = number.to(torch.get_default_dtype(), copy=True)
        distributed.all_reduce(total)
        return total / distributed.get_world_size()
