"""Hypotheses are read, recorded before the run, and judged by corrected intervals."""

from dataclasses import replace
from pathlib import Path

import comparisons
import pytest
from tiny import TINY

from zoo import config
from zoo.comparison import compare
from zoo.comparison.claims import judge_comparison
from zoo.comparison.hypotheses import (
    HYPOTHESES,
    check_hypotheses,
    explain_claim,
    parse_hypothesis,
    read_hypotheses,
    record_hypotheses,
)
from zoo.comparison.outputs import describe_comparison
from zoo.comparison.page.comparison_page import render
from zoo.comparison.results import RecordedHypothesis
from zoo.comparison.runner import CellRunner
from zoo.comparison.text import format_comparison
from zoo.errors import DataError, RecipeError


def claim_all(*texts, runs_ended=0):
    recorded = [
        RecordedHypothesis(text=text, written="2026-01-01 00:00 UTC", runs_ended=runs_ended)
        for text in texts
    ]
    # one look at three seeds has all false alarms
    return replace(comparisons.images(), hypotheses=tuple(recorded), looks=((3, 0.95),))


def verdicts(*texts):
    return [one.verdict for one in judge_comparison(claim_all(*texts))]


def test_a_claim_names_variants_margin_metric_and_condition():
    found = parse_hypothesis("rope depth=4 > alibi(m=2)  by 0.01 on test/loss at 256 by yarn")
    assert (found.one, found.sign, found.other) == ("rope depth=4", ">", "alibi(m=2)")
    assert (found.margin, found.metric, found.condition) == (0.01, "loss", "256 by yarn")
    found = parse_hypothesis("rope < none at 32")
    assert (found.margin, found.metric, found.condition) == (0, "", "32")
    for text in ("rope", "rope == none", "> none", "a > b by 1.2.3"):
        with pytest.raises(RecipeError, match="is no hypothesis"):
            parse_hypothesis(text)


def test_equality_has_a_margin_and_its_reason():
    found = parse_hypothesis("a = b within 0.01 on loss at 32 because four samples are 0.01")
    assert (found.sign, found.margin, found.metric, found.condition) == ("=", 0.01, "loss", "32")
    assert found.reason == "four samples are 0.01"
    for text in ("a = b", "a = b within 0.01", "a = b within 0 because none", "a = b by 1 because"):
        with pytest.raises(RecipeError, match="needs a margin above 0 and its reason"):
            parse_hypothesis(text)
    with pytest.raises(RecipeError, match="`within` is for equality"):
        parse_hypothesis("a > b within 0.01")


def test_unknown_variants_metrics_and_conditions_are_refused_together():
    recipe = config.load("vit_comrope", {"evaluate.resolutions": [24, "2x"]})
    check_hypotheses(["none < rope on loss at 32"], ["none", "rope"], recipe)
    texts = ["none > ropee", "none > rope on speed", "none > rope at 99", "rope > rope"]
    with pytest.raises(RecipeError) as caught:
        check_hypotheses(texts, ["none", "rope"], recipe)
    assert len(caught.value.issues) == 4
    assert "did you mean rope?" in str(caught.value)


def test_a_claim_is_held_reversed_or_undecided():
    # levels: none 0.93, rope_axial 0.975, rope_mixed 0.985, liere 0.984, each with noise of 0.004
    assert verdicts("comrope_ld > none") == ["held"]
    assert verdicts("comrope_ld < none") == ["reversed"]
    assert verdicts("rope_mixed > liere") == ["undecided"]
    assert verdicts("comrope_ld > none by 0.01") == ["held"]
    assert verdicts("comrope_ld > none by 0.06") == ["undecided"]
    assert verdicts("comrope_ld > none at 16") == ["held"]  # the size of training
    (found,) = judge_comparison(claim_all("comrope_ld > none at 64"))
    assert (found.verdict, found.reason) == ("no evidence yet", "not measured at 64")


def test_claims_are_corrected_for_their_number_across_conditions():
    one = judge_comparison(claim_all("rope_axial > sinusoidal"))[0]
    more = [f"none > liere at {size}" for size in (24, 32)]
    many = judge_comparison(claim_all("rope_axial > sinusoidal", *more))[0]
    assert many.p_value == pytest.approx(3 * one.p_value)
    assert many.estimate.low < one.estimate.low


def test_verdicts_are_in_table_page_and_json_and_late_claims_are_told():
    made = claim_all("comrope_ld > none", runs_ended=4)
    for text in (format_comparison(made), render(made)):
        assert "written after the result: after 4 runs had ended, so no prediction" in text
        assert "SHA-256" in text
    assert describe_comparison(made)["judgements"][0]["verdict"] == "held"
    assert "Hypotheses" not in format_comparison(comparisons.images())


def test_changes_after_the_first_runs_are_recorded(tmp_path, caplog):
    caplog.set_level("INFO")
    record_hypotheses(["a > b", "c > b"], tmp_path, 0, "test/accuracy")
    record_hypotheses(["a  > b", "a > c"], tmp_path, 3, "test/loss")
    first, second, third = read_hypotheses(tmp_path)
    assert (first.text, first.runs_ended, first.withdrawn) == ("a > b", 0, "")
    assert second.withdrawn
    assert (third.text, third.runs_ended) == ("a > c", 3)
    assert "hypothesis added after 3 runs had ended: a > c" in caplog.text
    assert "hypothesis withdrawn: c > b" in caplog.text
    assert "a > b: accuracy of a is above that of b, so a is better" in caplog.text
    assert "a > c: loss of a is above that of c, so a is worse" in caplog.text
    claim = parse_hypothesis("a < b by 0.1 on accuracy")
    assert "accuracy of a is below that of b, so a is worse" in explain_claim(claim, "test/loss")
    (tmp_path / HYPOTHESES).write_text("[1]")
    with pytest.raises(DataError, match="holds no hypotheses"):
        read_hypotheses(tmp_path)


def test_a_comparison_writes_them_before_it_trains(compared, monkeypatch):
    def pretend(self, processes):
        there.append(Path("c", HYPOTHESES).exists())
        Path("c/cells/none-0").mkdir(parents=True, exist_ok=True)
        Path("c/cells/none-0/end.json").write_text("{}")

    there = []
    monkeypatch.setattr(CellRunner, "run", pretend)
    monkeypatch.setattr(compare, "write_results", lambda *_, intervals: [])
    base = ["vit_comrope", *(word for word in TINY if "encoding" not in word)]
    words = [*base, "encodings=[none,learned]", "seeds=2", "to=c"]
    code, _, message = compared(*words, "hypotheses=[learned > nome]")
    assert code == 2
    assert "did you mean none?" in message
    _, out, _ = compared(*words, "hypotheses=[learned > none]")
    assert there == [True]
    assert "## Hypotheses" in out
    assert [one.runs_ended for one in read_hypotheses(Path("c"))] == [0]
    compared(*words, "hypotheses=[none > learned]")
    late = read_hypotheses(Path("c"))
    assert [(one.runs_ended, bool(one.withdrawn)) for one in late] == [(0, True), (1, False)]
