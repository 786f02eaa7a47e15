"""What a run begins with: equal wherever recipes say the same, and written down so that it can be seen."""

import hashlib
import json
import subprocess

import numpy as np
import pytest
import torch
from tiny import MORE, TINY
from training import fit

import zoo
from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.errors import OptionError
from zoo.run import run_dir
from zoo.run.callbacks.manifest import START, CostTracker, StartManifest, digest, list_batch_tensors
from zoo.run.checkpoint import RandomStreams

IMAGES = ("vit_comrope", ["model.dim=16", "model.depth=2", "model.heads=2", "model.patch_size=4"])
TEXTS = ("flipflop_rope", ["model.dim=16", "model.depth=2", "model.heads=2", "data.length=16"])
BLOCKS = ["model.block.mlp=swiglu", "model.block.norm=rms", "model.block.layer_scale=0.1"]


def weights(name, overrides, *encodings, seed=0):
    """{name: initial value} of a model with these encodings; those of encodings apart."""
    torch.manual_seed(seed)
    model = zoo.build_model(
        load(name, parse_overrides([*overrides, f"model.encoding=[{','.join(encodings)}]"]))
    )
    found = [{}, {}]
    for key, value in model.named_parameters():
        found[".encoding." in f".{key}"][key] = value.detach()
    return *found, torch.rand(4)


def list_lines(name):
    return ["alibi", name] if zoo.encoding_class(name).consumes_biases else [name]


def able(kind, names):
    """Those that a small model of a kind can have."""
    for name in names:
        try:
            weights(*kind, *list_lines(name))
        except OptionError:
            continue
        yield name


@pytest.mark.parametrize("more", [[], BLOCKS], ids=["plain", "other blocks"])
@pytest.mark.parametrize("kind", [IMAGES, TEXTS], ids=lambda kind: kind[0])
def test_weights_that_models_share_begin_equal_whatever_their_encodings(kind, more):
    name, overrides = kind
    known, own, rest = weights(name, [*overrides, *more], "none")
    assert len(known) > 10
    assert not own
    tried = [*able(kind, zoo.encoding_names())]
    assert len(tried) > 10
    for encoding in tried:
        found, _, after = weights(name, [*overrides, *more], *list_lines(encoding))
        assert found.keys() == known.keys(), encoding
        assert all(torch.equal(found[key], known[key]) for key in known), encoding
        assert torch.equal(after, rest), f"{encoding} has moved the stream that dropout draws from"


def test_an_encoding_begins_equal_in_whatever_list_it_stands():
    _, alone, _ = weights(*TEXTS, "fox")
    _, list_lines, _ = weights(*TEXTS, "rope", "fox")
    assert alone
    assert all(torch.equal(list_lines[key], alone[key]) for key in alone)


def test_encodings_of_two_models_differ_and_so_do_those_of_two_layers():
    recipe = load(
        IMAGES[0], parse_overrides([*IMAGES[1], "model.encoding={name: liere, shared: false}"])
    )
    torch.manual_seed(0)
    one, two = zoo.build_model(recipe), zoo.build_model(recipe)
    keys = [key for key, _ in one.named_parameters() if "encoding" in key]
    assert len(keys) == 2
    drawn = [model.state_dict()[key] for model in (one, two) for key in keys]
    assert not any(torch.equal(drawn[i], drawn[j]) for i in range(4) for j in range(i))


def test_what_draws_aside_leaves_the_stream_where_it_stood():
    torch.manual_seed(0)
    streams, before = RandomStreams(), torch.get_rng_state()
    with streams.use("a"):
        one = torch.rand(3)
    with streams.use("b"):
        two = torch.rand(3)
    with streams.use("a"):
        assert torch.equal(torch.rand(3), one)
    assert not torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_digest_is_of_every_bit():
    value = torch.tensor([[0.0, 1.5], [2.0, -1.0]])
    message = hashlib.sha256(
        b"torch.float32 (2, 2)" + np.array([[0, 1.5], [2, -1]], "<f4").tobytes()
    ).hexdigest()
    assert digest([value]) == message
    assert digest([torch.tensor([0.0])]) != digest([torch.tensor([-0.0])])


def test_weights_that_are_not_learned_are_digested_too(tmp_path):
    model = torch.nn.Linear(2, 1, bias=False)
    model.register_buffer("table", torch.zeros(3))
    model.register_buffer("count", torch.zeros(3, dtype=torch.long))
    message = StartManifest(tmp_path, model, {}).content
    assert message["parameters"] == 2
    assert set(message["weights"]) == {"weight", "table"}
    assert message["weights"]["table"] == [3, digest([torch.zeros(3)])]


def test_tensors_of_a_batch_are_found_in_mappings_too():
    batch = {
        "inputs": torch.zeros(1),
        "rest": [torch.ones(2), {"more": (torch.ones(3),)}],
        "name": "a",
    }
    assert [len(one) for one in list_batch_tensors(batch)] == [1, 2, 3]


def test_the_commit_is_that_of_the_code_that_runs(tmp_path, monkeypatch):
    # the tests ask once only
    describe = run_dir._describe_git.__wrapped__
    here = describe()
    assert here is None or len(here["commit"]) == 40
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    assert describe() == here


def test_a_run_writes_down_what_it_began_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    for name, *more in (("a",), ("b", "model.encoding=none"), ("c", "seed=1")):
        fit("vit_comrope", [*TINY, *MORE, "trainer.max_epochs=1", *more], tmp_path / name, "never")
        found[name] = json.loads((tmp_path / name / START).read_text())
    one, other, apart = found.values()
    shared = one["weights"].keys() & other["weights"].keys()
    assert one["weights"].keys() - shared == {key for key in one["weights"] if "encoding" in key}
    assert len(one["weights"].keys() - shared) > 0
    assert all(one["weights"][key] == other["weights"][key] for key in shared)
    assert (one["order"], one["batch"]) == (other["order"], other["batch"])
    assert apart["order"] != one["order"]
    assert apart["batch"] != one["batch"]
    assert one["backends"] == ["sdpa"]
    end = json.loads((tmp_path / "a" / "end.json").read_text())
    assert one["planned_steps"] == end["steps"] == 6
    assert end["memory"] > 2**26
    assert end["minutes"] > 0
    assert end["processor_minutes"] > 0
    environment = json.loads((tmp_path / "a" / "environment.json").read_text())
    assert end["device"] == "cpu"
    assert {**end["environment"], "started": ""} == {**environment, "started": ""}


def test_costs_add_up_over_attempts_without_the_time_of_waiting(monkeypatch):
    clock, worked = iter([100.0, 160.0, 500.0, 530.0]), iter([5.0, 25.0, 1.0, 11.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("time.process_time", lambda: next(worked))
    first, second, third = CostTracker(), CostTracker(), CostTracker()
    first.on_train_start(None, None)
    stored = first.state_dict()
    assert (stored["seconds"], stored["processor_seconds"]) == (60.0, 20.0)
    second.load_state_dict(stored)
    assert second.state_dict() == stored
    second.on_train_start(None, None)
    stored = second.state_dict()
    assert (stored["seconds"], stored["processor_seconds"]) == (90.0, 30.0)
    # a checkpoint of an earlier version does not tell how long cores worked
    del stored["processor_seconds"]
    third.load_state_dict(stored)
    assert third.state_dict() == {**stored, "processor_seconds": None}
