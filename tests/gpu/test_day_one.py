"""The measurements for a GPU run on a CPU, so that no mistake of theirs wastes one."""

import json

import day_one


def test_every_part_runs_on_a_cpu(tmp_path):
    out = tmp_path / "day_one.json"
    assert day_one.main(["--device", "cpu", "--small", "--out", str(out)]) == 0
    lines = json.loads(out.read_text())
    measured = {line["part"] for line in lines if "skipped" not in line}
    assert measured == {"machine", "end", *day_one.PARTS} - {"waits", "cifar10"}
    skipped = {line["part"]: line["skipped"] for line in lines if "skipped" in line}
    assert "GPU" in skipped["waits"]
    assert "--cifar10" in skipped["cifar10"]


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
