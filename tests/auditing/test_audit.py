"""`zoo.audit` finds planted faults, names their causes, and raises no false alarm."""

import json

import planted
import pytest
import torch

import zoo
from zoo.auditing.audit_report import EXPLANATIONS
from zoo.auditing.run_laws import LAWS
from zoo.testing import audit


@pytest.mark.parametrize("name", planted.SOUND)
def test_sound_models_keep_all_laws(name):
    report = zoo.audit(planted.SOUND[name]())
    assert report.is_sound, str(report)
    assert report.problem is None
    assert [result.law for result in report.results] == list(LAWS)


@pytest.mark.parametrize("explanation", planted.FAULTS)
def test_planted_faults_are_found_and_explained(explanation):
    build, laws = planted.FAULTS[explanation]
    report = zoo.audit(build())
    broken = {result.law: result for result in report.broken}
    assert laws <= set(broken), str(report)
    assert {broken[law].explanation for law in laws} == {explanation}, str(report)


def test_a_rounded_model_keeps_the_laws():
    model = planted.build_decoder()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    assert zoo.audit(model).is_sound


def test_encoders_are_asked_for_padding_and_not_for_the_future():
    from transformers import AutoConfig, AutoModelForMaskedLM

    config = AutoConfig.for_model(
        "bert", vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    report = zoo.audit(AutoModelForMaskedLM.from_config(config).eval())
    status = {result.law: result.status for result in report.results}
    assert report.is_sound, str(report)
    assert status["future"] == status["cache"] == "not asked"
    assert status["left_padding"] == status["right_padding"] == "kept"


def compute_prefix_means(ids, positions=None):
    """Compute logits [B, N, V] that depend on earlier tokens only."""
    states = torch.nn.functional.one_hot(ids, 16).double()
    counts = torch.arange(1, ids.shape[1] + 1)[:, None]
    return states.cumsum(1) / counts


def test_functions_are_asked_what_they_offer():
    subject = zoo.AuditSubject(logits=compute_prefix_means, vocab_size=16)
    report = zoo.audit(subject, laws=["future", "batch", "cache", "left_padding", "order"])
    status = {result.law: result.status for result in report.results}
    assert status["future"] == status["batch"] == "kept"
    assert status["cache"] == status["left_padding"] == "not asked"
    assert status["order"] == "broken"  # a mean does not see the order


def test_functions_that_see_the_future_break_the_law():
    subject = zoo.AuditSubject(logits=lambda ids: compute_prefix_means(ids).flip(1), vocab_size=16)
    (result,) = zoo.audit(subject, laws=["future"]).results
    assert result.status == "broken"


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda ids: ..., "returns ellipsis"),
        (lambda ids: ids, r"torch.int64 \[2, 8\] for \[2, 8\]"),
        (lambda ids: ids.missing, "AttributeError"),
    ],
)
def test_functions_without_logits_are_refused(logits, message):
    with pytest.raises(zoo.errors.RecipeError, match=message):
        zoo.audit(zoo.AuditSubject(logits=logits, vocab_size=16), laws=["future"])


def test_reports_are_saved(tmp_path):
    path = tmp_path / "audit.json"
    report = zoo.audit(planted.build_decoder(), laws=["future"], out=path)
    assert json.loads(path.read_text())["results"][0]["law"] == "future"
    assert "| future" in str(report)


def test_wrong_arguments_are_named():
    model = planted.build_decoder()
    with pytest.raises(zoo.RecipeError, match="packing"):
        zoo.audit(model, laws=["packng"])
    with pytest.raises(zoo.RecipeError, match="only a folder"):
        zoo.audit(model, size="small")
    with pytest.raises(zoo.RecipeError, match="AuditSubject"):
        zoo.audit(torch.nn.Linear(2, 2))


def test_every_explanation_is_a_sentence():
    assert all(sentence and not sentence.endswith(".") for sentence in EXPLANATIONS.values())


test_my_model = audit(planted.build_decoder, laws=["future", "rotary", "window"])


def test_a_broken_law_fails_its_test():
    check = audit(planted.FAULTS["table_ends"][0])
    with pytest.raises(AssertionError, match="999"):
        check("rotary")
