"""The measurements for a GPU run on a CPU, so that no mistake of theirs wastes one."""

import gzip
import json

import day_one
import fits
import torch


def test_every_part_runs_on_a_cpu(tmp_path):
    out = tmp_path / "day_one.json"
    assert day_one.main(["--device", "cpu", "--small", "--out", str(out)]) == 0
    lines = json.loads(out.read_text())
    measured = {line["part"] for line in lines if "skipped" not in line}
    assert measured == {"machine", "end", *day_one.PARTS} - {"waits", "cifar10"}
    skipped = {line["part"]: line["skipped"] for line in lines if "skipped" in line}
    assert "GPU" in skipped["waits"]
    assert "--cifar10" in skipped["cifar10"]


def test_a_number_above_its_limit_is_named_and_ends_with_1(tmp_path, monkeypatch):
    wrong = {"auto float32": {"error": 0.1, "of": "out"}, "sdpa float32": {"error": 1e-7}}

    def list_lines(session):
        yield "wrong", lambda: wrong
        yield "no number", lambda: {"auto bfloat16": {"error": float("nan")}}
        yield "right", lambda: {"sdpa float32": {"error": 1e-7}}

    monkeypatch.setattr(day_one, "PARTS", {"values": list_lines})
    out = tmp_path / "day_one.json"
    assert day_one.main(["--device", "cpu", "--out", str(out)]) == 1
    first, second, third = json.loads(out.read_text())[1:4]
    assert first["exceeds"] == ["auto float32 is 0.1, at most 1e-05"]
    assert second["exceeds"] == ["auto bfloat16 is nan, at most 0.04"]
    assert "exceeds" not in third


def test_a_wait_that_is_seen_exceeds_the_limit():
    assert day_one.list_excess("waits", {"lines": ["rope.py:3"]}) == ["lines is 1, at most 0"]
    assert not day_one.list_excess("waits", {"lines": []})


def test_the_idle_share_is_the_time_without_kernels(tmp_path):
    spans = [(0, 10), (5, 10), (20, 5), (25, 15)]
    events = [{"cat": "kernel", "ts": start, "dur": length} for start, length in spans]
    events.append({"cat": "cpu_op", "ts": 15, "dur": 5})
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    # from 0 to 40, nothing runs from 15 to 20
    assert fits.measure_idle(path) == 0.125


def test_a_mask_hides_keys_from_the_layer_of_a_case():
    torch.manual_seed(0)
    for case in (day_one.Case(40, window=10), day_one.Case(40, documents=(10, 20, 10))):
        layer, _ = case.build_pair("rope")
        x = torch.randn(1, 40, case.dim)
        before = day_one.train(layer, x, case)["out"]
        x[:, 0] += 1
        after = day_one.train(layer, x, case)["out"]
        changed = (before != after).any(-1)[0]
        assert changed[:10].all()
        assert not changed[10:].any()


def test_a_line_that_fails_is_recorded_and_the_next_follows(tmp_path, monkeypatch):
    def list_lines(session):
        yield "wrong", lambda: 1 / 0
        yield "right", lambda: {"ms": 1.0}

    monkeypatch.setattr(day_one, "PARTS", {"values": list_lines})
    out = tmp_path / "day_one.json"
    assert day_one.main(["--device", "cpu", "--out", str(out)]) == 1
    wrong, right = json.loads(out.read_text())[1:3]
    assert "ZeroDivisionError" in wrong["failed"]
    assert right["ms"] == 1.0


def test_a_part_ends_with_its_time(tmp_path):
    out = tmp_path / "day_one.json"
    assert day_one.main(["--device", "cpu", "--limit", "0", "--out", str(out)]) == 0
    lines = json.loads(out.read_text())[1:-1]
    assert all("time" in line["skipped"] for line in lines)
