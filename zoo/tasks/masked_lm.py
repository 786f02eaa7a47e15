"""Masked language modelling (Devlin et al. 2019, arXiv:1810.04805): hidden tokens from those on either side."""

from __future__ import annotations

import zlib
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.data.spec import IGNORE_INDEX, TextBatch, TextSpec
from zoo.errors import OptionError
from zoo.registry import Between, register
from zoo.tasks.base import Optimizer, Task
from zoo.tasks.metrics import TokenMetrics, mean_loss

HIDDEN, SWAPPED = 0.8, 0.1  # of the chosen tokens; the rest is left as it is


@register
class MaskedLM(Task):
    """Trains a bidirectional model of text to tell the tokens that were chosen, each with probability `share`.

    Of those, 80 % are replaced by the mask and 10 % by any token. The data's own targets are not looked at. Logs
    train/loss, and for val and test: loss in nats for each chosen token, perplexity, accuracy. The choices of an
    evaluation depend on the window alone, so that it repeats exactly, whatever the seed, the batches and the processes.
    `best` is the checkpoint with the lowest val/loss.
    """

    monitor, mode = "val/loss", "min"

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        samples: TextSpec,
        *,
        mask_ratio: Annotated[float, Between(0.001, 1)] = 0.15,
    ) -> None:
        super().__init__()
        mask = getattr(model, "mask_token", None)
        if not isinstance(mask, int):
            raise OptionError(
                "name", "fill trains a model that knows a mask token; choose model encoder"
            )
        self.model, self.optim, self.samples, self.share, self.mask = (
            model,
            optim,
            samples,
            mask_ratio,
            mask,
        )
        self.val_tally, self.test_tally = TokenMetrics(samples.length), TokenMetrics(samples.length)

    def forward(self, inputs: Tensor, documents: Tensor | None = None) -> Tensor:
        return self.model(inputs, documents)

    def inputs(self, batch: TextBatch) -> tuple[Tensor | None, ...]:
        return self._asked(batch)[0], batch.documents

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        draws = torch.rand(2, *batch.inputs.shape, device=batch.inputs.device)
        others = torch.randint_like(batch.inputs, self.mask)
        inputs, targets = self.masked(batch, draws, others)
        loss = mean_loss(self(inputs, batch.documents), targets, self.average_over_processes)
        self.log("train/loss", loss, batch_size=len(inputs), sync_dist=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.val_tally.reset()

    def on_test_epoch_start(self) -> None:
        self.test_tally.reset()
        self.test_tally.widen(self.longest_test_window)

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        self._measure(self.val_tally, batch)

    def test_step(self, batch: TextBatch, batch_idx: int) -> None:
        self._measure(self.test_tally, batch)

    def on_validation_epoch_end(self) -> None:
        self._conclude("val", self.val_tally)

    def on_test_epoch_end(self) -> None:
        self._conclude("test", self.test_tally)

    def masked(self, batch: TextBatch, draws: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [B, N] for uniform draws [2, B, N] and tokens [B, N] to swap in."""
        chosen = draws[0] < self.share
        if batch.documents is not None:
            chosen = chosen & (batch.documents >= 0)
        changed = torch.where(
            draws[1] < HIDDEN,
            self.mask,
            torch.where(draws[1] < HIDDEN + SWAPPED, others, batch.inputs),
        )
        return torch.where(chosen, changed, batch.inputs), torch.where(
            chosen, batch.inputs, IGNORE_INDEX
        )

    def _measure(self, tally: TokenMetrics, batch: TextBatch) -> None:
        inputs, targets = self._asked(batch)
        tally.update(self(inputs, batch.documents), targets)

    def _asked(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Inputs and targets [B, N] of an evaluation. Where windows overlap, a token is measured by one of them, as in the
        data's own targets.
        """
        draws, others = zip(
            *(self._draws(window) for window in batch.inputs.cpu().numpy()), strict=True
        )
        device = batch.inputs.device
        inputs, targets = self.masked(
            batch, torch.stack(draws, dim=1).to(device), torch.stack(others).to(device)
        )
        if batch.documents is None:
            targets = torch.where(batch.targets == IGNORE_INDEX, IGNORE_INDEX, targets)
        return inputs, targets

    def _draws(self, window: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Draws [2, N] and tokens [N] of a window alone: the same in any batch, process and epoch, on any device."""
        generator = np.random.default_rng(zlib.crc32(window.tobytes()))
        draws, others = (
            generator.random((2, len(window)), dtype=np.float32),
            generator.integers(self.mask, size=len(window)),
        )
        return torch.from_numpy(draws), torch.from_numpy(others)

    def _conclude(self, part: str, tally: TokenMetrics) -> None:
        measures = tally.compute().measures()  # the same in every process
        self.log_dict({f"{part}/{name}": value for name, value in measures.items()}, sync_dist=True)

    def configure_optimizers(self) -> Any:
        return self.optim.configure(self.model, int(self.trainer.estimated_stepping_batches))
