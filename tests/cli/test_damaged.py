"""What a diagnosis and its kin say of runs that are damaged, stopped, or cannot be read or written."""

import signal

import pytest
from tiny import language
from untrained import made

from zoo.tasks.predict import Predict

CPU = "trainer.accelerator=cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A decoder of text that nobody trained."""
    folder = tmp_path_factory.mktemp("damaged")
    made(folder / "decoder", "lm_rope", [*language(folder / "letters.txt"), "evaluate.lengths=null"])
    return folder / "decoder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("verb", ["eval", "diagnose"])
def test_a_signal_while_testing_stops_with_its_code(verb, number, run, zoo, monkeypatch):
    monkeypatch.setattr(Predict, "on_test_batch_start", lambda *given: signal.raise_signal(number), raising=False)
    code, out, told = zoo(verb, run, CPU)
    assert (code, out) == (128 + number, "")
    assert f"stopped by {number.name} while testing" in told
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints"]


def test_a_signal_at_the_last_moment_of_testing_stops_too(run, zoo, monkeypatch):
    monkeypatch.setattr(Predict, "on_test_end", lambda *given: signal.raise_signal(signal.SIGTERM), raising=False)
    assert zoo("eval", run, CPU)[0] == 143
