"""What `zoo bench` measures on a GPU."""

import pytest
import torch

from zoo.benchmark.measures import MemoryMeasure, TrainMeasure
from zoo.benchmark.models import build_contender
from zoo.benchmark.protocol import SHAPES, Workload
from zoo.options import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SETTING = Workload(shape=SHAPES["lm_toy"], device="cuda")


def test_a_step_takes_time_and_memory():
    ready = MemoryMeasure().prepare(build_contender([Choice("alibi")]), SETTING)
    assert ready.run() > 16 * ready.facts.parameters  # weights, two moments, gradients
    assert TrainMeasure("tokens").prepare(build_contender([Choice("alibi")]), SETTING).run() > 0
