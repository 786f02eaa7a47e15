"""What can be tuned, what goes with it, and that no test sample decides."""

import pytest
from tiny import TINY

from zoo import config
from zoo.comparison.tuning import read_tuned_keys
from zoo.config.command_line import parse_overrides
from zoo.data.base import DataModule
from zoo.errors import RecipeError
from zoo.run.fit import fit

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
]
TUNED = "tune.optim.lr=[1e-3,1e-2]"


@pytest.mark.parametrize(
    ("tune", "problem"),
    [
        ({"optim.lr": [1e-2, 1e-4, "log"]}, "is empty"),
        ({"optim.lr": [0, 1e-2, "log"]}, "cannot begin at 0"),
        ({"optim.lr": [1e-3, "log"]}, "two numbers and the word"),
        ({"optim.lr": 0.1}, "expected a range or a list"),
        ({"optim.lr": [1, 1]}, "has a choice twice"),
        ({"seed": [1, 2]}, "does not change how a model is trained"),
        ({"encoding_lr": [1, 3], "optim.encoding_lr": [1, 3]}, "tuned twice"),
        ({"optim": ["adamw"], "optim.lr": [1, 2]}, "overlaps"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tune, problem):
    with pytest.raises(RecipeError, match=problem):
        read_tuned_keys(tune)


def test_all_issues_of_a_tuned_comparison_are_told_together(compared, tmp_path):
    code, _, message = compared(
        *BASE, "encodings=[none,learned]", "tune.optim.lr=[1e-2,1e-4,log]", "studies=2", "to=c"
    )
    assert code == 2
    assert "is empty" in message
    assert "tuning needs budget; write budget=4" in message
    assert not (tmp_path / "c").exists()

    wrong = ["tune.optim.weight_deccay=[0,0.1]", "studies=2", "budget=2"]
    code, _, message = compared(*BASE, "encodings=[none,learned]", *wrong, "to=c")
    assert code == 2
    assert "did you mean optim.weight_decay" in message


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (["budget=3"], ["budget: nothing is tuned; write tune.optim.lr="]),
        (["studies=2"], ["studies: nothing is tuned"]),
        # tuning once, before the seeds, would leave the chance of tuning out of the intervals
        (
            [TUNED, "budget=2"],
            ["studies: tuning needs studies; write studies=5, each of which tunes all variants"],
        ),
        (
            [TUNED, "seeds=3"],
            ["tuning needs studies; write studies=5", "tuning needs budget; write budget=4"],
        ),
        ([TUNED, "studies=2", "budget=2", "seeds=2"], ["seeds: each study has a seed of its own"]),
    ],
)
def test_tuned_keys_studies_and_a_budget_go_together(words, problems, compared):
    code, _, message = compared(*BASE, "encodings=[none,learned]", *words)
    assert code == 2
    for problem in problems:
        assert problem in message


def test_a_trial_reads_no_test_sample(monkeypatch, tmp_path):
    def leak(self):
        raise AssertionError("test samples are read")

    monkeypatch.setattr(DataModule, "test_dataloader", leak)
    recipe = config.load(BASE[0], parse_overrides(BASE[1:]))
    found = fit(recipe, tmp_path / "trial", is_tested=False)
    assert found.best is not None
    with pytest.raises(AssertionError, match="test samples are read"):
        fit(recipe, tmp_path / "tested")
