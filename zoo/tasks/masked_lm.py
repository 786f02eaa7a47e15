"""Masked language modelling (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

import zlib
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.data.spec import IGNORE_INDEX, TextBatch, TextSpec
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register
from zoo.tasks.base import Metrics, Optimizer, Task
from zoo.tasks.metrics import (
    MEASURED,
    ChosenMetrics,
    TokenMetrics,
    count_targets,
    mean_loss,
    sum_losses,
)

# Fractions of the chosen tokens that become the mask token and a random token; the others stay.
MASKED, REPLACED = 0.8, 0.1


@register
class MaskedLM(Task):
    """A task that trains a bidirectional language model to predict chosen tokens.

    80 % of the chosen tokens are replaced by the mask token and 10 % by a random one. The targets
    of the data are not used. It logs train/loss and, for val and test, loss in nats per chosen
    token, perplexity and accuracy. The best checkpoint has the lowest val/loss. In evaluation the
    choice depends only on the window, so that results do not depend on the seed, the batch size
    and the number of processes.

    Args:
        model: The model, with a `mask_token`.
        optim: Creates the optimizer.
        spec: The facts of the data.
        mask_ratio: Probability of choosing a token.
        metrics: Additional metrics of validation and test.
    """

    monitor, mode = "val/loss", "min"
    weighs_targets = True
    # n-grams predict the next token from those before, not a masked token from both sides
    has_data_baselines = False

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        spec: TextSpec,
        *,
        mask_ratio: Annotated[float, Between(0.001, 1)] = 0.15,
        metrics: Metrics = (),
    ) -> None:
        super().__init__(model, optim, spec)
        mask_token = getattr(model, "mask_token", None)
        if not isinstance(mask_token, int):
            message = "masked_lm trains models with a mask token; choose model encoder"
            raise OptionError("name", message)
        self.mask_ratio, self.mask_token = mask_ratio, mask_token
        self.targets_per_sample = spec.length
        self.val_metrics = TokenMetrics(spec.length)
        self.test_metrics = TokenMetrics(spec.length)
        self.chosen_metrics = ChosenMetrics(metrics, spec, MEASURED)

    def forward(self, inputs: Tensor, documents: Tensor | None = None) -> Tensor:
        """Compute logits [B, N, V]."""
        return self.model(inputs, documents)

    def inputs(self, batch: TextBatch) -> tuple[Tensor | None, ...]:
        """Return the masked inputs and the documents of an evaluation batch."""
        return self._mask_by_window(batch)[0], batch.documents

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Compute the training loss."""
        draws = torch.rand(2, *batch.inputs.shape, device=batch.inputs.device)
        random_tokens = torch.randint_like(batch.inputs, self.mask_token)
        inputs, targets = self.mask(batch, draws, random_tokens)
        loss = mean_loss(self(inputs, batch.documents), targets)
        self.record_loss(loss, len(inputs), count_targets(targets))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Clear the counts."""
        self.val_metrics.reset()
        self.val_metrics.widen(self.spec.size[0])
        self.chosen_metrics["val"].reset()

    def on_test_epoch_start(self) -> None:
        """Clear the counts."""
        self.test_metrics.reset()
        self.chosen_metrics["test"].reset()
        self.test_metrics.widen(self.longest_test_window)

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Update the validation metrics."""
        self._update("val", self.val_metrics, batch)

    def test_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Update the test metrics."""
        self._update("test", self.test_metrics, batch)

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics."""
        self._log_metrics("val", self.val_metrics)

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        self._log_metrics("test", self.test_metrics)

    def mask(self, batch: TextBatch, draws: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Mask tokens of a batch.

        Args:
            batch: The batch.
            draws: Uniform draws [2, B, N] that decide whether a token is chosen, and what replaces
                it.
            others: Random tokens [B, N].

        Returns:
            Inputs and targets [B, N].
        """
        chosen = draws[0] < self.mask_ratio
        if batch.documents is not None:
            chosen = chosen & (batch.documents >= 0)
        replaced = torch.where(draws[1] < MASKED + REPLACED, others, batch.inputs)
        replaced = torch.where(draws[1] < MASKED, self.mask_token, replaced)
        inputs = torch.where(chosen, replaced, batch.inputs)
        return inputs, torch.where(chosen, batch.inputs, IGNORE_INDEX)

    def _mask_by_window(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Mask the tokens of an evaluation batch; return inputs and targets [B, N]."""
        drawn = [self._draw(window) for window in batch.inputs.cpu().numpy()]
        device = batch.inputs.device
        draws = torch.stack([draws for draws, _ in drawn], dim=1).to(device)
        random_tokens = torch.stack([random_tokens for _, random_tokens in drawn]).to(device)
        inputs, targets = self.mask(batch, draws, random_tokens)
        # Windows may overlap: the data has a target for a token in only one of them.
        if batch.documents is None:
            targets = torch.where(batch.targets == IGNORE_INDEX, IGNORE_INDEX, targets)
        return inputs, targets

    def _draw(self, window: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Draw numbers [2, N] and tokens [N] with a seed that depends only on the window."""
        # a checksum, as the hash of bytes in Python differs between processes
        generator = np.random.default_rng(zlib.crc32(window.tobytes()))
        draws = generator.random((2, len(window)), dtype=np.float32)
        tokens = generator.integers(self.mask_token, size=len(window))
        return torch.from_numpy(draws), torch.from_numpy(tokens)

    def _update(self, split: str, metrics: TokenMetrics, batch: TextBatch) -> None:
        inputs, targets = self._mask_by_window(batch)
        logits = self(inputs, batch.documents)
        if split == "test" and self.sample_losses is not None:
            self.keep_sample_losses(*sum_losses(logits, targets))
        metrics.update(logits, targets)
        self.chosen_metrics[split].update(logits, targets)

    def _log_metrics(self, split: str, metrics: TokenMetrics) -> None:
        # torchmetrics sums over processes, so the values are the same in each.
        values = metrics.compute().measures() | self.chosen_metrics[split].compute()
        self.log_dict({f"{split}/{name}": value for name, value in values.items()}, sync_dist=True)
