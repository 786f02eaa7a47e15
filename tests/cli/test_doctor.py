"""`zoo doctor` and the starting files of `zoo new`; broken packages are told in one line."""

import json
import os
import subprocess
import sys

import pytest
from tiny import ROOT

from zoo.cli import doctor, main
from zoo.packages import suggest_extra

NMS = "operator torchvision::nms does not exist"


@pytest.fixture
def torchvision(tmp_path):
    """A torchvision that was built for another torch."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text(f"raise RuntimeError({NMS!r})")
    about = tmp_path / "torchvision-0.20.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\n")
    return tmp_path


def run(folder, *words):
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "zoo", *words],
        env=os.environ | {"PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_a_torchvision_of_another_torch_is_reported(torchvision):
    done = run(torchvision, "doctor", "--json")
    assert done.returncode == 1
    checks = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert checks["torchvision"]["state"] == "broken"
    assert "pip uninstall torchvision" in checks["torchvision"]["detail"]
    assert checks["torch"]["state"] == "ok"


def test_a_cache_that_cannot_be_written_has_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert doctor.check_cache().state == "ok"

    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("zoo.utils.check_writable", refuse)
    check = doctor.check_cache()
    assert check.state == "broken"
    assert "XDG_CACHE_HOME" in check.detail


def test_extras_that_are_absent_come_with_the_command(monkeypatch):
    monkeypatch.setattr(
        doctor, "list_missing", lambda names: [one for one in names if one == "submitit"]
    )
    checks = {check.name: check for check in doctor.check_extras()}
    assert checks["[slurm]"].state == "absent"
    assert checks["[slurm]"].detail == f"submitit: {suggest_extra('slurm')}"


def test_new_files_work_and_are_never_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["new", "recipe", "mine"]) == 0
    assert main(["show", "mine.yaml"]) == 0
    assert "yaml-language-server: $schema=" in (tmp_path / "mine.yaml").read_text()

    assert main(["new", "encoding", "my_new_zoo/near"]) == 0
    # the environment is restored after the test
    monkeypatch.setenv("ZOO_PLUGINS", "my_new_zoo")
    assert main(["verify", "near", "--plugin", "my_new_zoo", "axes=1"]) == 0
    assert main(["new", "mixer", "my_new_zoo/fading"]) == 0
    assert main(["show", "fading", "--plugin", "my_new_zoo"]) == 0
    edit = "model.layer_types.linear.mixer=fading"
    assert main(["show", "lm_hybrid", edit, "--plugin", "my_new_zoo"]) == 0
    capsys.readouterr()

    file = tmp_path / "my_new_zoo/encodings/near.py"
    file.write_text("# my work")
    assert main(["new", "encoding", "my_new_zoo/near"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "# my work"


@pytest.mark.parametrize("kind", ["encoding", "mixer"])
@pytest.mark.parametrize("word", ["rope", "gated_delta", "Near", "a b", "class"])
def test_a_name_that_cannot_be_a_member_is_refused(kind, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, word]) == 2
    assert not [*tmp_path.iterdir()]
