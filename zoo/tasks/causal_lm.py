"""Causal language modelling with next-token loss, perplexity and bits per character or byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from zoo.attention.kv_cache import SegmentMemory
from zoo.data.spec import TextBatch, TextSpec
from zoo.errors import OptionError, ZooError
from zoo.registry import register
from zoo.tasks.base import Metrics, Optimizer, Task
from zoo.tasks.metrics import (
    MEASURED,
    ChosenMetrics,
    TokenCounts,
    TokenMetrics,
    count_targets,
    mean_loss,
    sum_losses,
)


@register
class CausalLM(Task):
    """A task that trains a causal language model on windows with targets.

    It logs train/loss and, for val and test, loss in nats per target, perplexity, accuracy, and
    bits_per_character or bits_per_byte if the vocabulary has such a unit or the data knows the
    bytes of its tokens. If each window has one answer, `exact` is the fraction of answers in which
    every token is right, which is the accuracy of greedy decoding. The best checkpoint has the
    lowest val/loss.

    A model with memory remembers the previous batch. Each loop starts with an empty memory.

    After a test, `position_losses` holds the mean loss by position in the window,
    `position_accuracies` the accuracy, and `position_counts` the number of targets. Positions
    without targets are None. If the data knows where texts state their answers, `depth_exacts`
    holds the fraction of right answers in each tenth of the text.

    Args:
        model: The model.
        optim: Creates the optimizer.
        spec: The facts of the data.
        metrics: Additional metrics of validation and test.
    """

    monitor, mode = "val/loss", "min"
    weighs_targets = True

    def __init__(
        self, model: nn.Module, optim: Optimizer, spec: TextSpec, *, metrics: Metrics = ()
    ) -> None:
        super().__init__(model, optim, spec)
        # only causal models have it, 0 without a memory
        memory = getattr(model, "memory_length", None)
        if not isinstance(memory, int):
            message = "causal_lm trains causal models; choose model decoder"
            raise OptionError("name", message)
        self.targets_per_sample = spec.length
        self.unit, self.has_answers = spec.vocabulary.unit, spec.targets == "answers"
        self.val_metrics = TokenMetrics(spec.length)
        self.test_metrics = TokenMetrics(spec.length)
        self.chosen_metrics = ChosenMetrics(metrics, spec, MEASURED)
        self.memories = {split: LoopMemory(memory) for split in ("train", "val", "test")}
        self.position_losses: list[float | None] = []
        self.position_accuracies: list[float | None] = []
        self.position_counts: list[int] = []
        self.depth_exacts: list[float | None] = []

    def forward(self, inputs: Tensor, documents: Tensor | None = None) -> Tensor:
        """Compute logits [B, N, V]."""
        return self.model(inputs, documents)

    def inputs(self, batch: TextBatch) -> tuple[Tensor | None, ...]:
        """Return the inputs and documents of a batch."""
        return batch.inputs, batch.documents

    def logits(self, split: str, batch: TextBatch) -> Tensor:
        """Compute logits [B, N, V], with the memory of the loop over `split` as context."""
        context = self.memories[split].context(len(batch.inputs), batch.inputs.device)
        return self.model(*self.inputs(batch), context=context)

    def on_train_start(self) -> None:
        """Ask the data whether processes may have unequal numbers of targets."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.weighs_targets = not getattr(data, "has_full_windows", False)
        super().on_train_start()

    def on_train_epoch_start(self) -> None:
        """Clear the memory."""
        self.memories["train"].forget()

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Compute the training loss."""
        try:
            logits = self.logits("train", batch)
        except OptionError as error:
            # The recipe is valid, but the model cannot read this window.
            raise ZooError(f"model.{error.key}: {error}") from None
        loss = mean_loss(logits, batch.targets)
        self.record_loss(loss, len(batch.inputs), count_targets(batch.targets))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Clear the memory, and the counts of a loop that was interrupted."""
        self.memories["val"].forget()
        self.val_metrics.reset()
        self.val_metrics.widen(self.spec.size[0])
        self.chosen_metrics["val"].reset()

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Update the validation metrics."""
        self._update("val", self.val_metrics, batch)

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics."""
        self._log_metrics("val", self.val_metrics)

    def on_test_epoch_start(self) -> None:
        """Clear the memory and the counts."""
        self.memories["test"].forget()
        self.test_metrics.reset()
        self.chosen_metrics["test"].reset()
        self.test_metrics.widen(self.longest_test_window)

    def test_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Update the test metrics."""
        self._update("test", self.test_metrics, batch)

    def on_test_epoch_end(self) -> None:
        """Log the test metrics, and store those by position."""
        counts = self._log_metrics("test", self.test_metrics)
        self.position_losses = counts.position_losses()
        self.position_accuracies = counts.position_accuracies()
        self.position_counts = counts.targets.tolist()
        self.depth_exacts = counts.depth_exacts()

    def _update(self, split: str, metrics: TokenMetrics, batch: TextBatch) -> None:
        logits = self.logits(split, batch)
        if split == "test" and self.sample_losses is not None:
            self.keep_sample_losses(*sum_losses(logits, batch.targets))
        metrics.update(logits, batch.targets, batch.target_bytes, batch.answer_depths)
        self.chosen_metrics[split].update(logits, batch.targets)

    def _log_metrics(self, split: str, metrics: TokenMetrics) -> TokenCounts:
        # torchmetrics sums over processes, so the counts are the same in each.
        counts = metrics.compute()
        values = counts.measures() | counts.bits(self.unit)
        if self.has_answers:
            values |= counts.exact_match()
        values |= self.chosen_metrics[split].compute()
        self.log_dict({f"{split}/{name}": value for name, value in values.items()}, sync_dist=True)
        return counts

    def batch_state(self) -> dict[str, Any]:
        """Return the memory of the training loop as plain data."""
        memory = self.memories["train"]
        return {"memory": memory.state_dict()} if memory.length else {}

    def load_batch_state(self, state: Mapping[str, Any]) -> None:
        """Restore the memory of the training loop."""
        if "memory" in state:
            self.memories["train"].load_state_dict(state["memory"])


class LoopMemory:
    """The memory of earlier windows in one loop, row by row. With `length` 0 it stays empty."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.forget()

    def forget(self) -> None:
        """Clear the memory."""
        self._rows = 0
        self._context = SegmentMemory(self.length)
        self._loaded: Mapping[str, Any] | None = None

    def context(self, rows: int, device: torch.device) -> SegmentMemory | None:
        """Return the context of a batch with so many rows, or None without memory."""
        if not self.length:
            return None
        # A batch of another size does not continue the rows of the last one.
        if rows != self._rows:
            self.forget()
            self._rows = rows
        # A loaded state waits until the device is known.
        if self._loaded is not None:
            self._context.load_state_dict(move_data_to_device(self._loaded, device))
            self._loaded = None
        return self._context

    def state_dict(self) -> dict[str, Any]:
        """Return the memory as plain data."""
        return {"rows": self._rows, "context": self._loaded or self._context.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a memory that `state_dict` returned."""
        self.forget()
        self._rows, self._loaded = state["rows"], state["context"]
