"""`pytest --zoo-audit FOLDER`."""

import subprocess
import sys

import planted
import pytest

from zoo.auditing import model_folder
from zoo.auditing.pytest_plugin import AuditFailure, list_items
from zoo.auditing.run_laws import LAWS


def test_each_law_is_a_test(request, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    broken = planted.FAULTS["table_ends"][0]()
    monkeypatch.setattr(model_folder, "load_folder", lambda folder, options: broken)
    items = {item.law: item for item in list_items(request.session, str(tmp_path))}
    assert list(items) == list(LAWS)
    items["future"].runtest()
    with pytest.raises(pytest.skip.Exception, match="names no window"):
        items["window"].runtest()
    with pytest.raises(AuditFailure, match="have the angles of position 999") as failure:
        items["rotary"].runtest()
    assert items["rotary"].repr_failure(failure).startswith("rotary: ")


def test_a_missing_folder_is_a_usage_error(request):
    with pytest.raises(pytest.UsageError, match="nowhere: no such folder"):
        list(list_items(request.session, "nowhere"))


def test_pytest_starts_without_torch():
    code = "import sys, zoo.auditing.pytest_plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
