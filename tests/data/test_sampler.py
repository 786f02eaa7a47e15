"""The order of samples, and how processes deal them out."""

import itertools
import os
import threading
from signal import SIGKILL
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from zoo import utils
from zoo.data.images import Images
from zoo.data.python_docs import PythonDocs
from zoo.data.sampler import ProcessShare, ResumableLoader, ResumableSampler, WorkerStart
from zoo.data.synthetic.flipflop import Flipflop
from zoo.data.tables import stream
from zoo.data.tables.labelled_table import RowBatch, SkipBudget
from zoo.data.tables.stream import split_batches
from zoo.data.text_classification import TextClassification
from zoo.data.text_stream import TextStream
from zoo.errors import DataError, OptionError

SIZES = list(itertools.product((7, 64, 129, 360, 1000), (1, 8, 64), (1, 2, 3, 7)))


class Loader(stream.StreamingLoader):
    def __init__(self, workers):
        super().__init__(None, "nothing", 1, workers, ProcessShare(), seed=0, stream=None)


class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitems__(self, keys):
        return torch.tensor(keys)


def orders(count, batch, processes, seed):
    return [
        list(ResumableSampler(count, batch * processes, ProcessShare(rank, processes), seed))
        for rank in range(processes)
    ]


@pytest.mark.parametrize(("count", "batch", "processes"), SIZES)
def test_an_evaluation_has_each_sample_once_and_all_processes_in_each_batch(
    count, batch, processes
):
    dealt = orders(count, batch, processes, None)
    assert sorted(itertools.chain(*itertools.chain(*dealt))) == list(range(count))
    assert len({len(batches) for batches in dealt}) == 1
    lengths = [len(one) for batches in dealt for one in batches]
    assert min(lengths) >= 1
    assert max(lengths) <= batch + (processes > 1)
    assert max(lengths) - min(lengths) <= 2


@pytest.mark.parametrize(("count", "batch", "processes"), SIZES)
def test_training_is_that_of_one_process_with_the_joined_batch(count, batch, processes):
    alone = list(ResumableSampler(count, batch * processes, ProcessShare(), 3))
    dealt = orders(count, batch, processes, 3)
    joined = [list(itertools.chain(*parts)) for parts in zip(*dealt, strict=True)]
    assert all(len({len(part) for part in parts}) == 1 for parts in zip(*dealt, strict=True))
    assert [one[: len(two)] for one, two in zip(alone, joined, strict=False)] == joined
    assert count - sum(map(len, joined)) == count % (batch * processes) % processes


def test_a_resumed_epoch_may_be_dealt_out_otherwise():
    whole = [key for batch in ResumableSampler(100, 12, ProcessShare(), 0) for key in batch]
    order = ResumableSampler(100, 20, ProcessShare(), 0)
    order.skip = 36
    assert [key for batch in order for key in batch] == whole[36:]
    assert len([key for batch in order for key in batch]) == 100


def test_fewer_samples_than_processes_are_refused():
    with pytest.raises(DataError, match="3 samples cannot be split among 4 processes"):
        ResumableSampler(3, 32, ProcessShare(0, 4), None)
    with pytest.raises(DataError, match="a batch of 2 cannot be split among 4 processes"):
        ResumableSampler(300, 2, ProcessShare(0, 4), None)


def test_a_loader_knows_what_it_has_given():
    loader = ResumableLoader(Numbers(20), 4, 0, 0, ProcessShare(1, 2), training=True)
    given = [loader.state_dict()["consumed"] for _ in loader]
    assert given == [8, 16, 0]
    for _ in loader:
        break  # as where a limit of batches ends an epoch
    assert [loader.state_dict()["consumed"] for _ in loader] == given


class Device:
    """What a loader asks a trainer: the device, and whether batches repeat."""

    overfit_batches = 0.0

    def __init__(self, kind):
        self.strategy = SimpleNamespace(root_device=torch.device(kind))


@pytest.mark.parametrize("make", [PythonDocs, Images, TextClassification, TextStream])
def test_loaders_pin_memory_for_a_gpu_and_load_as_far_ahead_as_asked(make, monkeypatch):
    path = {} if make is PythonDocs else {"path": "somewhere"}
    with pytest.raises(OptionError, match="no worker loads batches in advance; set workers, or"):
        make(0, prefetch_factor=4, **path)
    data = make(0, workers=1, prefetch_factor=4, **path)
    monkeypatch.setattr(make, "build_loader", lambda *_: Loader(0))
    for split in ("train", "val", "test"):
        data.trainer = Device("cuda")
        loader = getattr(data, f"{split}_dataloader")()
        assert (loader.pin_memory, loader.prefetch_factor) == (True, 4)
        data.trainer = Device("cpu")
        assert not getattr(data, f"{split}_dataloader")().pin_memory


def test_a_stream_is_loaded_with_the_settings_of_its_loader(monkeypatch):
    seen = {}
    monkeypatch.setattr(stream, "DataLoader", lambda _, **options: seen.update(options) or [])
    loader = Loader(1)
    loader.pin_memory, loader.prefetch_factor = True, 3
    assert [*loader] == []
    assert (seen["num_workers"], seen["pin_memory"], seen["prefetch_factor"]) == (1, True, 3)


def test_an_order_that_is_held_is_that_of_the_first_epoch():
    order = ResumableSampler(50, 8, ProcessShare(), 0)
    first = list(order)
    order.set_epoch(1)
    assert list(order) != first
    order.fixed_epoch = True
    order.set_epoch(2)
    assert list(order) == first


@pytest.mark.parametrize("count", range(12))
def test_a_stream_in_batches_leaves_no_process_without(count):
    batches = list(split_batches(range(count), 4, 3))
    assert [row for batch in batches for row in batch] == (list(range(count)) if count >= 3 else [])
    assert all(3 <= len(batch) < 7 for batch in batches)


def test_a_source_deals_out_what_its_trainer_says():
    class Trainer:
        global_rank, world_size, overfit_batches = 1, 2, 0.0

    alone, data = Flipflop(0, train=64, batch_size=16), Flipflop(0, train=64, batch_size=8)
    data.trainer = Trainer()
    own = next(iter(data.train_dataloader())).inputs
    assert np.array_equal(own, next(iter(alone.train_dataloader())).inputs[8:])


def test_a_batch_without_a_sound_sample_is_told_where_others_wait_for_it():
    batch = RowBatch(torch.empty(0, 3, 8, 8), torch.empty(0), {3: "row 3: no image"})
    assert list(SkipBudget(1.0, 10).skip_corrupt(iter([batch]))) == []
    with pytest.raises(DataError, match="row 3: no image; all samples of its batch are corrupt"):
        list(SkipBudget(1.0, 10, world_size=2).skip_corrupt(iter([batch])))


def test_a_worker_ends_with_the_process_that_started_it(monkeypatch):
    """A process that is killed cannot tell its workers; another process is then their parent."""
    started, ended = [], threading.Event()
    parents = iter([os.getpid(), os.getpid(), 1])
    begin = WorkerStart(started.append)
    monkeypatch.setattr(utils, "WATCH_SECONDS", 0)
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda *given: given == (os.getpid(), SIGKILL) and ended.set())
    begin(3)
    assert ended.wait(10)
    assert started == [3]
    assert next(parents, None) is None
