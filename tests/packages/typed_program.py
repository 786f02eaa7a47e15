"""A program of a user, for `make check`: with zoo's types, mypy --strict passes it."""

import torch
from torch import nn

import zoo


class Block(nn.Module):
    """A layer of one's own around zoo's attention."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = zoo.Attention(zoo.Dims(dim, 4, 1, (64,), 0, 1), "rope")

    def forward(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.attention(self.norm(x), pos)
        return x + mixed


def train() -> float:
    """Train a recipe, look at the run, and use the model."""
    run = zoo.fit("vit_comrope", {"model.dim": 96, "trainer.max_epochs": 1})
    accuracy: float = run.metrics["test/accuracy"]
    losses = [row["train/loss"] for row in run.history() if "train/loss" in row]
    measured = zoo.evaluate(run, resolutions=[16, 24]).metrics
    print(run.path, len(losses), measured)
    model = zoo.load(run)
    print(model.predict(torch.zeros(1, 1, 16, 16), top=3)[0]["label"])
    return accuracy


def compare() -> str:
    """Compare encodings, and equip a model of another library."""
    result = zoo.compare("vit_none", encodings=["none", "rope_mixed"], seeds=3)
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    equipped = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    report: zoo.EquipReport = zoo.equip(equipped, "rope")
    print(report)
    return result.table()
