"""A little text to train on: windows of a cycle of letters, with a mistake here and there."""

import warnings

import lightning as L
import torch
from language import SAMPLES
from torch.utils.data import DataLoader

from zoo.data.spec import TextBatch
from zoo.optim.optimizers import AdamW
from zoo.run.build import silence_libraries

OPTIM = AdamW(lr=3e-3, warmup_ratio=0.0)


class Cycle(L.LightningDataModule):
    """`count` batches of `rows` windows, each going on where the batch before ended; the last has `last` rows."""

    samples = SAMPLES

    def __init__(self, count=4, rows=3, last=3, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        text = (
            torch.arange(12 * count + 1) % 11 + torch.randint(2, (rows, 1), generator=generator)
        ) % 11
        pieces = [text[:, 12 * i : 12 * i + 13] for i in range(count)]
        self.batches = [TextBatch(piece[:, :-1], piece[:, 1:]) for piece in pieces]
        self.batches[-1] = TextBatch(*(part[:last] for part in self.batches[-1][:2]))

    def train_dataloader(self):
        return DataLoader(self.batches, batch_size=None)

    def val_dataloader(self):
        return DataLoader(self.batches, batch_size=None)

    test_dataloader = val_dataloader


def trainer(**options):
    silence_libraries()
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return L.Trainer(
            accelerator="cpu", logger=False, num_sanity_val_steps=0, **quiet, **options
        )
