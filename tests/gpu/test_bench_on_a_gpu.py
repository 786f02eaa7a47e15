"""What `zoo bench` measures on a GPU."""

import pytest
import torch

from zoo.bench.measures import Memory, Train
from zoo.bench.models import ours
from zoo.bench.protocol import SHAPES, Setting
from zoo.registry import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SETTING = Setting(shape=SHAPES["lm_toy"], device="cuda")


def test_a_step_takes_time_and_memory():
    ready = Memory().ready(ours([Choice("alibi")]), SETTING)
    assert ready.run() > 16 * ready.facts.parameters  # weights, two moments, gradients
    assert Train("tokens").ready(ours([Choice("alibi")]), SETTING).run() > 0
