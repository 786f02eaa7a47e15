"""`zoo audit` on models and runs of zoo."""

import pytest
import torch
from language import decoder
from untrained import write_checkpoint

import zoo
from zoo.auditing.model_subjects import make_subject
from zoo.cli import main

ASKED = {"future", "batch", "cache", "left_padding", "right_padding", "packing", "order"}


def stir(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model.eval()


@pytest.mark.parametrize("encoding", ["rope", "alibi", "fox", "path"])
def test_decoders_of_zoo_keep_the_laws(encoding):
    report = zoo.audit(stir(decoder(encoding)), laws=[*sorted(ASKED), "shift"])
    assert report.is_sound, str(report)
    asked = {result.law for result in report.results if result.status == "kept"}
    assert asked >= ASKED, str(report)


def test_a_leak_between_documents_is_found():
    model = stir(decoder("rope"))
    sound = model.forward
    model.forward = lambda ids, documents=None, **options: sound(ids, **options)
    report = zoo.audit(make_subject(model), laws=["packing"])
    assert [result.law for result in report.broken] == ["packing"]


def test_runs_are_audited(tmp_path, capsys):
    words = ["data.length=32", "model.dim=16", "model.depth=1", "model.heads=2"]
    write_checkpoint(tmp_path, "lm_rope", words)
    assert main(["audit", str(tmp_path), "laws=[future,packing]"]) == 0
    assert "Decoder" in capsys.readouterr().out
    assert main(["audit", str(tmp_path), "size=small"]) == 2
    assert "only a folder has a size" in capsys.readouterr().err
