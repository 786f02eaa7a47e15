"""Language modelling: the next token, cross-entropy, perplexity, bits per character or byte."""

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
from zoo.tasks.base import Optimizer, Task
from zoo.tasks.metrics import TokenCounts, TokenMetrics, mean_loss


class LoopMemory:
    """What a loop remembers of the windows before, each row its own; `length` 0 remembers nothing."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.forget()

    def forget(self) -> None:
        self._rows = 0
        self._context = SegmentMemory(self.length)
        self._loaded: Mapping[str, Any] | None = None

    def context(self, rows: int, device: torch.device) -> SegmentMemory | None:
        """The context of a batch of so many rows: a new one if the batch before had another number of them."""
        if not self.length:
            return None
        if rows != self._rows:
            self.forget()
            self._rows = rows
        if self._loaded is not None:  # only now it is known where to
            self._context.load_state_dict(move_data_to_device(self._loaded, device))
            self._loaded = None
        return self._context

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as plain data."""
        return {"rows": self._rows, "context": self._loaded or self._context.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.forget()
        self._rows, self._loaded = state["rows"], state["context"]


@register
class CausalLM(Task):
    """Trains a causal model of text on windows with targets.

    Logs train/loss, and for val and test: loss in nats for each token asked, perplexity, accuracy, and
    bits_per_character or bits_per_byte where the vocabulary has such a unit or the data says how many bytes a token is.
    Where each window asks for one answer, exact is the share of those in which every token is right: as many as a model
    would give that writes the likeliest token each time.
    `best` is the checkpoint with the lowest val/loss. After a test, `positions` holds the mean loss by place in the
    window and `accuracies` the accuracy, None where nothing was asked, and `asked` how many tokens were. A model with memory
    remembers the batch before; each loop starts with none.
    """

    monitor, mode = "val/loss", "min"

    def __init__(self, model: nn.Module, optim: Optimizer, samples: TextSpec) -> None:
        super().__init__()
        memory = getattr(model, "memory_length", None)
        if not isinstance(memory, int):
            raise OptionError(
                "name",
                "predict trains a model that sees only what came before; choose model decoder",
            )
        self.model, self.optim, self.samples = model, optim, samples
        self.unit, self.answers = samples.vocabulary.unit, samples.targets == "answers"
        self.val_tally, self.test_tally = TokenMetrics(samples.length), TokenMetrics(samples.length)
        self.memories = {part: LoopMemory(memory) for part in ("train", "val", "test")}
        self.positions: list[float | None] = []
        self.accuracies: list[float | None] = []
        self.target_counts: list[int] = []

    def forward(self, inputs: Tensor, documents: Tensor | None = None) -> Tensor:
        return self.model(inputs, documents)

    def inputs(self, batch: TextBatch) -> tuple[Tensor | None, ...]:
        return batch.inputs, batch.documents

    def logits(self, part: str, batch: TextBatch) -> Tensor:
        """[B, N, V], after what the loop over `part` remembers."""
        context = self.memories[part].context(len(batch.inputs), batch.inputs.device)
        return self.model(*self.inputs(batch), context=context)

    def on_train_epoch_start(self) -> None:
        self.memories["train"].forget()

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        try:
            logits = self.logits("train", batch)
        except (
            OptionError
        ) as error:  # a window that the model cannot read, after the recipe was found right
            raise ZooError(f"model.{error.key}: {error}") from None
        loss = mean_loss(logits, batch.targets, self.average_over_processes)
        self.log("train/loss", loss, batch_size=len(batch.inputs), sync_dist=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.memories["val"].forget()
        self.val_tally.reset()  # in case a loop was broken off

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        self.val_tally.update(self.logits("val", batch), batch.targets, batch.target_bytes)

    def on_validation_epoch_end(self) -> None:
        self._conclude("val", self.val_tally)

    def on_test_epoch_start(self) -> None:
        self.memories["test"].forget()
        self.test_tally.reset()
        self.test_tally.widen(self.longest_test_window)

    def test_step(self, batch: TextBatch, batch_idx: int) -> None:
        self.test_tally.update(self.logits("test", batch), batch.targets, batch.target_bytes)

    def on_test_epoch_end(self) -> None:
        counts = self._conclude("test", self.test_tally)
        self.positions, self.accuracies, self.target_counts = (
            counts.positions(),
            counts.accuracies(),
            counts.targets.tolist(),
        )

    def _conclude(self, part: str, tally: TokenMetrics) -> TokenCounts:
        counts = tally.compute()  # the same in every process
        measures = (
            counts.measures() | counts.bits(self.unit) | (counts.whole() if self.answers else {})
        )
        self.log_dict({f"{part}/{name}": value for name, value in measures.items()}, sync_dist=True)
        return counts

    def batch_state(self) -> dict[str, Any]:
        memory = self.memories["train"]
        return {"memory": memory.state_dict()} if memory.length else {}

    def load_batch_state(self, state: Mapping[str, Any]) -> None:
        if "memory" in state:
            self.memories["train"].load_state_dict(state["memory"])

    def configure_optimizers(self) -> Any:
        return self.optim.configure(self.model, int(self.trainer.estimated_stepping_batches))
