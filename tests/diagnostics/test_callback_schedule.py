"""Looks take no more than their share of the time, and come as often as they may."""

import pytest

from zoo.diagnostics.callback import LookSchedule

SECOND = 0.01  # of a step


def simulate_training(cadence, cost, steps):
    """The steps that are looked at, and the largest share that looks ever had of the time."""
    found, most, due, looks = [], 0.0, cadence.every, 0.0
    for step in range(1, steps + 1):
        elapsed = step * SECOND + looks
        if step >= due:
            due = cadence.next_step(step, step, elapsed)
            if due == step:
                cadence.record(cost)
                looks += cost
                found.append(step)
                most = max(most, cadence.share(elapsed + cost))
                due = step + cadence.every
    return found, most


def test_cheap_looks_come_at_each_step_that_is_asked_for():
    found, _ = simulate_training(LookSchedule(every=100, budget=0.02), SECOND, 1000)
    assert found == list(range(100, 1001, 100))


@pytest.mark.parametrize("cost", [2 * SECOND, 10 * SECOND, 40 * SECOND])
def test_dear_looks_are_put_off(cost):
    found, _ = simulate_training(LookSchedule(every=10, budget=0.02), cost, 20_000)
    assert all(step % 10 == 0 for step in found)
    assert len(found) * cost <= 0.0205 * 20_000 * SECOND + cost
    assert len(found) * cost > 0.017 * 20_000 * SECOND


def test_the_share_is_kept_once_the_cost_is_known():
    cadence = LookSchedule(every=10, budget=0.02)
    cadence.cost = 5 * SECOND
    assert simulate_training(cadence, 5 * SECOND, 5000)[1] <= 0.02


def test_the_whole_time_may_be_asked_for():
    assert simulate_training(LookSchedule(every=1, budget=1.0), SECOND, 5)[0] == [1, 2, 3, 4, 5]
