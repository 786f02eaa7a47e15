"""Peak memory is counted from torch's own allocations."""

import torch

from zoo.benchmark.protocol import measure_peak_memory

MILLION = 4_000_000  # bytes of a million numbers in float32


def ones():
    return torch.ones(1_000_000)


def test_what_is_held_at_once_counts():
    def act():
        first, second = ones(), ones()
        del first, second
        third = ones()
        del third

    assert measure_peak_memory(act, "cpu") == 2 * MILLION


def test_what_was_held_before_does_not_count():
    before = ones()
    assert measure_peak_memory(lambda: before.neg_(), "cpu") == 0
    assert measure_peak_memory(lambda: before.exp(), "cpu") == MILLION


def test_gradients_and_what_is_saved_for_them_count():
    x = ones().requires_grad_()
    assert measure_peak_memory(lambda: x.exp().square().sum().backward(), "cpu") >= 3 * MILLION


def test_the_tracer_is_quiet(capfd):
    measure_peak_memory(ones, "cpu")
    assert capfd.readouterr().err == ""
