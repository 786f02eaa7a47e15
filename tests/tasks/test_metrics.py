"""Sums over predicted tokens."""

import math
from pathlib import Path

import pytest
import torch
from several import run
from torch.nn import functional as F

from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import IGNORE_INDEX, ImageSpec, SegmentationSpec, TextSpec
from zoo.errors import OptionError
from zoo.optim.optimizers import AdamW
from zoo.tasks.classification import Classification
from zoo.tasks.metrics import (
    DIRECTIONS,
    PositionLoss,
    TokenMetrics,
    express_baselines,
    find_best_baseline,
    is_beaten,
    mean_loss,
)
from zoo.tasks.segmentation import Segmentation


def make_batch():
    """Logits [3, 6, 5] and targets, of which some are not asked."""
    targets = torch.randint(5, (3, 6))
    targets[0, 2:] = targets[:, 4] = IGNORE_INDEX
    return torch.randn(3, 6, 5), targets


def test_the_loss_is_the_mean_of_what_is_asked():
    logits, targets = make_batch()
    chosen = [-logits[b, n].log_softmax(0)[targets[b, n]] for b, n in (targets >= 0).nonzero()]
    assert mean_loss(logits, targets).item() == pytest.approx(sum(chosen).item() / len(chosen))


def test_nothing_asked_costs_nothing():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = mean_loss(logits, torch.full((2, 3), IGNORE_INDEX))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


def test_half_precision_is_lost_by_neither():
    logits, targets = make_batch()
    logits = (100 * logits).bfloat16()
    tally = TokenMetrics(6)
    tally.update(logits, targets)
    expected = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).item()
    assert mean_loss(logits, targets).item() == pytest.approx(expected)
    assert tally.compute().measures()["loss"].item() == pytest.approx(expected)


@pytest.mark.parametrize("unit", ["character", "byte", "token"])
def test_a_baseline_has_the_units_of_the_metrics(unit):
    """It is what the test would measure if the baseline were the model, in each unit."""
    logits, targets = make_batch()
    sizes = torch.randint(1, 5, targets.shape)
    found = []
    for one in (logits, 3 * logits.roll(1, -1)):
        tally = TokenMetrics(6)
        tally.update(one, targets, sizes)
        counts = tally.compute()
        values = counts.measures() | counts.bits(unit)
        found.append({f"test/{name}": value.item() for name, value in values.items()})
    model, guess = found
    units = {"test/loss", "test/perplexity", f"test/bits_per_{unit.replace('token', 'byte')}"}
    expressed = express_baselines({"test/loss": {"guess": guess["test/loss"]}}, model)
    assert {*expressed} == units == {*model} - {"test/accuracy"}
    for metric in units:
        assert expressed[metric]["guess"] == pytest.approx(guess[metric], rel=1e-5)


def test_a_baseline_without_a_loss_has_no_other_units():
    accuracies = {"test/accuracy": {"majority class": 0.1}}
    assert express_baselines(accuracies, {"test/accuracy": 0.5, "test/perplexity": 2.0}) == (
        accuracies
    )
    assert express_baselines({}, {"test/loss": 1.0, "test/perplexity": math.e}) == {}
    huge = express_baselines({"test/loss": {"a": 1e6}}, {"test/loss": 1.0, "test/perplexity": 2.7})
    assert huge["test/perplexity"] == {"a": math.inf}


def test_the_best_baseline_is_the_hardest_to_beat():
    values = {"a": 0.2, "b": 0.7}
    for name, direction in DIRECTIONS.items():
        best = find_best_baseline(f"test/{name}", values)
        assert best == {"low": "a", "high": "b"}[direction]
        assert not is_beaten(f"test/{name}", values[best], values[best])
        assert is_beaten(f"test/{name}", values[best], values["a" if best == "b" else "b"])
    assert find_best_baseline("test/loss", {}) == ""


def _counts_a_width_of_its_own(rank):
    """A process of two, whose windows are as long as its rank says."""
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    tally = TokenMetrics(2)
    tally.widen(6)
    tally.update(torch.zeros(1, 3 + rank, 5), torch.zeros(1, 3 + rank, dtype=torch.long))
    return 0 if tally.compute().targets.tolist() == [2, 2, 2, 1, 0, 0] else 7


def test_processes_that_meet_windows_of_other_lengths_add_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(2, _counts_a_width_of_its_own) == [0, 0], Path("rank-0.log").read_text()


def test_each_token_weighs_the_same_whatever_its_batch():
    logits, targets = make_batch()
    tally = TokenMetrics(6)
    for rows in ([0], [1, 2]):
        tally.update(logits[rows], targets[rows])
    measures = tally.compute().measures()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert measures["loss"].item() == pytest.approx(loss.item())
    assert measures["perplexity"].item() == pytest.approx(math.exp(loss))
    right = ((logits.argmax(-1) == targets) & (targets >= 0)).sum() / (targets >= 0).sum()
    assert measures["accuracy"].item() == pytest.approx(right.item())


def test_a_window_is_right_where_all_that_it_asks_is():
    targets = torch.tensor(
        [[-100, 1, 2], [-100, 1, 2], [3, -100, -100], [-100, -100, -100], [0, 1, 2]]
    )
    said = torch.tensor([[0, 1, 2], [0, 1, 3], [3, 0, 0], [0, 0, 0], [4, 1, 2]])
    tally = TokenMetrics(3)
    for rows in (slice(0, 2), slice(2, 5)):
        tally.update(F.one_hot(said[rows], 5).float(), targets[rows])
    assert tally.compute().exact_match()["exact"].item() == pytest.approx(2 / 4)  # one asks nothing


def test_right_answers_are_counted_by_their_depth():
    targets = torch.tensor([[-100, 1], [-100, 1], [-100, 1], [-100, -100]])
    said = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 1]])
    tally = TokenMetrics(2)
    tally.update(F.one_hot(said, 3).float(), targets)
    assert tally.compute().depth_exacts() == []
    tally.update(F.one_hot(said, 3).float(), targets, None, torch.tensor([0.0, 0.04, 1.0, 0.5]))
    assert tally.compute().depth_exacts() == [0.5, *[None] * 8, 1.0]


def test_the_loss_is_measured_in_bins_of_positions():
    logits, targets = make_batch()
    logits, targets = torch.cat([logits, logits], 1), torch.cat([targets, targets], 1)
    targets[:, 4:6] = IGNORE_INDEX
    metric = PositionLoss(TextSpec(8, Words(("a", "b"))), bins=3)
    for rows in ([0], [1, 2]):
        metric.update(logits[rows], targets[rows])
    losses = F.cross_entropy(logits.mT, targets, ignore_index=IGNORE_INDEX, reduction="none")
    places = {"0-1": slice(0, 2), "2-4": slice(2, 5), "5-7": slice(5, 8), "8+": slice(8, None)}
    expected = {
        f"position_loss/{name}": losses[:, place].sum() / (targets[:, place] >= 0).sum()
        for name, place in places.items()
    }
    torch.testing.assert_close(metric.compute(), expected)
    with pytest.raises(OptionError, match="write 8 or less"):
        PositionLoss(TextSpec(8, Words(("a", "b"))), bins=9)


def test_bits_are_told_by_the_unit():
    logits, targets = make_batch()
    tally, sized = TokenMetrics(6), TokenMetrics(6)
    tally.update(logits, targets)
    sized.update(logits, targets, torch.full((3, 6), 4))
    nats = tally.compute().measures()["loss"].item()
    for unit in ("character", "byte"):
        assert tally.compute().bits(unit)[f"bits_per_{unit}"].item() == pytest.approx(
            nats / math.log(2)
        )
    assert sized.compute().bits("token")["bits_per_byte"].item() == pytest.approx(
        nats / math.log(2) / 4
    )
    assert tally.compute().bits("token") == {}


def test_the_loss_by_place_widens_with_the_window():
    logits, targets = make_batch()
    tally = TokenMetrics(2)
    tally.update(logits[:, :2], targets[:, :2])
    tally.update(logits, targets)
    found = tally.compute().position_losses()
    first = F.cross_entropy(logits[:, 0], targets[:, 0]).item()
    assert found[0] == pytest.approx(first)
    assert found[4] is None
    assert len(found) == 6


def test_the_accuracy_by_place_is_that_of_what_is_asked_there():
    logits, targets = make_batch()
    tally = TokenMetrics(2)
    tally.update(logits[:1], targets[:1])
    tally.update(logits[1:], targets[1:])
    found = tally.compute().position_accuracies()
    for place, known in enumerate((targets >= 0).T):
        hits = [logits[row, place].argmax() == targets[row, place] for row in known.nonzero()[:, 0]]
        assert found[place] == (pytest.approx(sum(hits).item() / len(hits)) if hits else None)


def test_a_tally_starts_anew():
    tally = TokenMetrics(6)
    tally.update(*make_batch())
    tally.reset()
    assert tally.targets.tolist() == [0] * 6
    assert tally.correct.tolist() == [0] * 6
    assert tally.bytes == 0


def test_a_window_of_one_token_has_one_place():
    metrics = TokenMetrics(1)
    metrics.update(torch.zeros(2, 1, 4), torch.tensor([[0], [3]]))
    found = metrics.compute()
    torch.testing.assert_close(found.position_losses(), [math.log(4)])
    assert found.position_accuracies() == [0.5]


@pytest.mark.parametrize("task", [Classification, Segmentation])
def test_more_classes_than_memory_holds_pairs_of_are_refused_before_training(task):
    kind = ImageSpec if task is Classification else SegmentationSpec
    with pytest.raises(OptionError, match=r"33,000 classes have a confusion matrix of 8\.7 GB"):
        task(torch.nn.Identity(), AdamW(lr=1e-3), kind(3, 8, 8, 33_000))
