"""Weights in shards: two processes that have one model between them."""

from pathlib import Path

import pytest
import torch
from several import run
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import zoo
from zoo.config.command_line import parse_overrides
from zoo.tasks.base import shard

STEPS = 10


def losses(encoding, rank=0, mesh=None):
    """Of ten steps on batches of eight, in all processes; each of two takes a half."""
    torch.manual_seed(0)
    small = [
        "model.dim=16",
        "model.depth=2",
        "model.heads=2",
        "model.position_augmentation.jitter=0",
        "model.block.drop_path=0",
    ]
    model = zoo.build_model(
        zoo.load_recipe("vit_comrope", parse_overrides([*small, f"model.encoding={encoding}"]))
    )
    if mesh is not None:
        shard(model, mesh)
        assert all(isinstance(weight, DTensor) for weight in model.parameters())
    optimizer, draw = (
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        torch.Generator().manual_seed(1),
    )
    own, found = slice(None) if mesh is None else slice(rank * 4, rank * 4 + 4), []
    for _ in range(STEPS):
        images, labels = (
            torch.randn(8, 1, 16, 16, generator=draw),
            torch.randint(10, (8,), generator=draw),
        )
        loss = F.cross_entropy(model(images[own]), labels[own])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.parametrize("encoding", ["comrope_ld", "[learned, rope_axial]"])
def test_ten_steps_lose_what_the_plain_model_does(encoding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = losses(encoding)

    def work(rank):
        distributed.init_process_group("gloo", rank=rank, world_size=2)
        found = losses(encoding, rank, init_device_mesh("cpu", (2,)))
        distributed.all_reduce(found)
        torch.testing.assert_close(found / 2, plain, atol=1e-6, rtol=1e-6)

    assert run(2, work) == [0, 0], Path("rank-0.log").read_text()
