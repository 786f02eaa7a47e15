"""A newcomer follows docs/adding.md: one file and one recipe, nothing else edited."""

import re
from functools import partial

import pytest
from tiny import ROOT, TINY

import zoo as package
from zoo import registry
from zoo.laws import LAWS, Case
from zoo.laws.backends import a_compiler_captures_it, exports_at_any_size

# they take seconds each
GRAPHS = (a_compiler_captures_it, exports_at_any_size)


def write_encoding(folder):
    """The files that the page tells to write, as a package of one's own."""
    page = (ROOT / "docs" / "adding.md").read_text()
    encoding = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    recipe = re.search(r"The recipe.*?```yaml\n(.*?)```", page, re.DOTALL)[1]
    for place, text in (
        ("encodings/window.py", encoding),
        ("recipes/vit_window.yaml", recipe),
        ("__init__.py", ""),
    ):
        path = folder / "my_zoo" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_it_is_listed_shown_and_trainable(zoo, tmp_path, monkeypatch):
    write_encoding(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = zoo("list", "encodings", "--plugin", "my_zoo")
    assert code == 0
    assert re.search(r"^window +A bias for near tokens", out, re.MULTILINE)
    assert "exp(-(distance / width)^2)" in zoo("show", "window", "--plugin", "my_zoo")[1]
    assert "chunked (a bias for each pair)" in zoo("show", "vit_window", "--plugin", "my_zoo")[1]
    tiny = [word for word in TINY if "encoding" not in word]
    code, _, message = zoo("fit", "vit_window", *tiny, "--plugin", "my_zoo")
    assert code == 0, message


@pytest.mark.parametrize("graphs", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_it_keeps_the_laws(graphs, tmp_path, monkeypatch):
    write_encoding(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(registry.PLUGINS, "my_zoo")
    member = Case("window", 2, partial(package.encoding, "window"))
    kept = [law for law in LAWS if not law.exempt(member) and (law in GRAPHS) == graphs]
    for law in kept:
        law(member)
    assert len(kept) == 2 if graphs else len(kept) > 20


def test_without_the_plug_in_it_is_not_there(zoo):
    assert zoo("fit", "vit_window")[0] == 2
