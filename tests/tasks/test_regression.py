"""Regression: standardized targets, metrics in the units of the data, and what is refused."""

import pytest
import torch
from torch import nn

from zoo.data.spec import PointBatch, PointSpec
from zoo.errors import OptionError
from zoo.options import Choice
from zoo.tasks.classification import Classification
from zoo.tasks.regression import Regression

SPEC = PointSpec(1, 1, 4, target_means=(10.0, -2.0), target_stds=(5.0, 0.5))


class FirstFeatures(nn.Module):
    """Predict the first features of the first point, twice."""

    def forward(self, x, pos, mask):
        return x[:, 0].expand(-1, 2)


def make_task(**options):
    task = Regression(FirstFeatures(), None, SPEC, **options)
    task.log = task.log_dict = lambda *args, **kwargs: None
    task.is_step_logged = lambda: False
    return task


def draw_batch(count=6):
    x = torch.randn(count, 4, 1)
    target = torch.randn(count, 2) * torch.tensor(SPEC.target_stds) + torch.tensor(
        SPEC.target_means
    )
    return PointBatch(x, torch.rand(count, 4, 1), torch.ones(count, 4, dtype=torch.bool), target)


def test_the_model_predicts_standardized_targets():
    task, batch = make_task(), draw_batch()
    predicted = task(*task.inputs(batch))
    torch.testing.assert_close(predicted[:, 0], 10 + 5 * batch.x[:, 0, 0])
    torch.testing.assert_close(predicted[:, 1], -2 + 0.5 * batch.x[:, 0, 0])
    standard = (batch.target - torch.tensor([10.0, -2])) / torch.tensor([5.0, 0.5])
    expected = (batch.x[:, 0].expand(-1, 2) - standard).square().mean()
    torch.testing.assert_close(task.training_step(batch, 0), expected)


def test_metrics_are_those_of_the_whole_set_in_the_units_of_the_data():
    task, batches = make_task(), [draw_batch(5), draw_batch(2)]
    for number, batch in enumerate(batches):
        task.test_step(batch, number)
    predicted = torch.cat([task(*task.inputs(batch)) for batch in batches])
    target = torch.cat([batch.target for batch in batches])
    errors = predicted - target
    values = {name: float(value) for name, value in task.test_metrics.compute().items()}
    assert values["mae"] == pytest.approx(float(errors.abs().mean()))
    assert values["rmse"] == pytest.approx(float(errors.square().mean().sqrt()))
    scaled = errors / torch.tensor(SPEC.target_stds)
    assert values["loss"] == pytest.approx(float(scaled.square().mean()))
    centred = target - target.mean(0)
    each = 1 - errors.square().sum(0) / centred.square().sum(0)
    assert values["r2"] == pytest.approx(float(each.mean()), rel=1e-4)


def test_one_sample_has_no_coefficient_of_determination():
    task = make_task()
    task.test_step(draw_batch(1), 0)
    assert task.test_metrics.compute()["r2"].isnan()


def test_classes_and_numbers_have_their_own_task():
    with pytest.raises(OptionError, match="choose classification"):
        Regression(FirstFeatures(), None, PointSpec(1, 1, 4, classes=3))
    with pytest.raises(OptionError, match="choose regression"):
        Classification(FirstFeatures(), None, SPEC)
    with pytest.raises(OptionError, match="f1: it counts classes"):
        make_task(metrics=(Choice("f1"),))
