"""The examples run."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zoo

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+")


def load_example(name, folder="examples"):
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def minimal():
    return load_example("minimal")


@pytest.mark.parametrize("encoding", ["rope", "rope_axial", "kerple+dape", "learned"])
def test_the_training_loop_takes_any_encoding(encoding, minimal, capsys):
    accuracy = minimal.main(["--encoding", encoding, "--steps", "3"])
    assert 0 <= accuracy <= 1
    assert re.search(r"step +3  loss \d\.\d{4}\n.*test accuracy \d\.\d{4}", capsys.readouterr().out)


def test_rope_learns_the_task(minimal):
    assert minimal.main(["--encoding", "rope", "--steps", "60"]) > 0.95


def test_the_training_loop_is_short():
    assert len((ROOT / "examples" / "minimal.py").read_text().splitlines()) < 120


def test_context_extension_is_tabulated_from_what_a_folder_has(tmp_path, capsys):
    extend = load_example("extend")
    for recipe in extend.TASKS:
        stages = [("before", extend.RULES), ("after", (*extend.TRAINED_ON, "drop"))]
        names = [
            f"{stage} {rule} {times}"
            for stage, rules in stages
            for rule in rules
            for times in (1, *extend.TIMES)
        ]
        found = {name: {"value": number / 100} for number, name in enumerate(names)}
        found |= {f"bend {times}": 1.0 for times in extend.TIMES}
        found |= {f"training {rule}": 0.0 for rule in stages[1][1]}
        found |= {"seconds": 1.0, "trained": 0.5, "length": 16, "pairs": 8}
        found |= {"exported": {"rule": "yarn", "files": []}}
        (tmp_path / f"{recipe}.json").write_text(json.dumps(found))

    extend.main(tmp_path, None, small=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["test/loss"]
    assert rows[1] == ["16", "32", "64", "128"]
    assert rows[2] == ["none", "0.0000", "0.0100", "0.0200", "0.0300"]
    assert rows[-1][:2] == ["drop,", "trained"]
    studies = json.loads((tmp_path / "extension.json").read_text())["studies"]
    assert studies["lm_rope"]["before yarn 8"]["value"] == 0.15
    assert (tmp_path / "extension.svg").read_text().startswith("<svg")


def test_published_weights_are_tabulated_from_what_a_folder_has(tmp_path, capsys):
    extend = load_example("extend")
    found = {
        f"{method} {times}": {"beyond": times + 0.25, "digits": [0, 5], "process_seconds": 1.0}
        for times, methods in ((1, ["none"]), (2, extend.PUBLISHED))
        for method in methods
    }
    found |= {"seconds": 1.0, "weights": "small.gguf", "length": 16}
    (tmp_path / "published.json").write_text(json.dumps(found))
    (tmp_path / "runs" / "published").mkdir(parents=True)

    extend.main(tmp_path, Path("small.gguf"), small=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["tokens", "loss", "digits"]
    assert rows[1] == ["none", "16", "1.2500", "0", "5"]
    assert rows[2:4] == [["none", "32", "2.2500", "0", "5"], ["truncate", "32", "2.2500", "0", "5"]]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_is_stored_with_its_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]

    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]


def test_the_notebook_of_the_tour_has_the_text_and_code_of_its_page():
    made = load_example("tour_notebook", "docs/build")
    cells = json.loads(made.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    stored = [(cell["cell_type"], "".join(cell["source"]).split()) for cell in cells]
    page = made.PAGE.read_text(encoding="utf-8")
    written = [(kind, source.split()) for kind, source in made.list_cells(page)]
    assert written == stored, "run python docs/build/tour_notebook.py, then make notebooks"


def test_the_pictures_of_the_tour_are_small_and_drawn_again(tmp_path):
    pictures = load_example("tour_pictures")
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    shown = re.findall(r"images/tour/(\w+)\.svg", page)
    assert [*pictures.PICTURES] == shown
    assert {path.stem for path in pictures.FOLDER.iterdir()} == {*shown}
    assert all(path.stat().st_size < 40_000 for path in pictures.FOLDER.iterdir())
    assert len(re.findall(r"^## \d+\. ", page, re.MULTILINE)) == len(shown) == 12

    pictures.main(["set", "stretch"], tmp_path)
    for path in tmp_path.iterdir():
        one, other = (file.read_text() for file in (path, pictures.FOLDER / path.name))
        assert NUMBER.sub("", one) == NUMBER.sub("", other)
        # another processor sums in another order
        assert [*map(float, NUMBER.findall(one))] == pytest.approx(
            [*map(float, NUMBER.findall(other))], rel=1e-3, abs=0.05
        )


@pytest.mark.notebook
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs_when_it_is_downloaded_alone(path, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if missing := load_example("execute").find_missing(path):
        pytest.skip(f"without {', '.join(missing)}")
    shutil.copy(path, tmp_path)
    lines = [
        "import nbformat",
        "from nbclient import NotebookClient",
        f"notebook = nbformat.read({str(path)!r}, as_version=4)",
        f"resources = {{'metadata': {{'path': {str(tmp_path)!r}}}}}",
        "NotebookClient(notebook, timeout=300, resources=resources).execute()",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, env=environment)


def test_a_release_makes_anew_what_a_kill_left_and_names_what_fails(tmp_path, monkeypatch):
    release = load_example("release")
    # a stop between the export and the table
    half = tmp_path / "vit_learned" / "model.safetensors"
    half.parent.mkdir()
    half.touch()
    asked = []

    def make(folder, name, recipe, changes):
        asked.append((name, recipe, changes, half.exists()))
        if name == "vit_none":
            raise zoo.ZooError("no luck")
        (folder / name).mkdir()
        return {"encodings": "", "bytes": 1, "measure": "test/loss", "value": 1.0}

    monkeypatch.setattr(release, "list_models", lambda: {n: (n, {"seed": 1}) for n in names})
    monkeypatch.setattr(release, "_make_model", make)
    names = ["vit_learned", "vit_none", "lm_none"]
    assert release.make_release(tmp_path, names, {"seed": 2}) == {"vit_none": "no luck"}
    assert asked[0] == ("vit_learned", "vit_learned", {"seed": 2}, False)
    assert "| [lm_none](lm_none)" in (tmp_path / "README.md").read_text()
    assert release.make_release(tmp_path, names, {}) == {"vit_none": "no luck"}
    assert [one[0] for one in asked] == [*names, "vit_none"]


@pytest.mark.nightly
def test_a_release_is_continued_and_its_models_are_loaded(tmp_path):
    release = load_example("release")
    # an encoding on texts and one on images, of recipes that extend others
    assert {"lm_rope", "lm_alibi", "vit_comrope", "vit_learned"} <= {*release.list_recipes()}
    assert not {"lm_rope_124m", "vit_s16_comrope_imagenet"} & {*release.list_recipes()}
    models = release.list_models()
    # encodings that have no small recipe of their own are there too
    assert models["lm_carope"] == ("lm_rope", {"model.encoding": ["carope"]})
    assert "vit_carope" not in models
    small = {"model.dim": 24, "model.depth": 1, "trainer.max_steps": 1, "trainer.num_threads": 1}
    release.make_release(tmp_path / "out", ["vit_learned"], small)
    first = (tmp_path / "out" / "vit_learned" / "model.safetensors").stat()
    release.make_release(tmp_path / "out", ["vit_learned", "vit_rope_axial"], small)
    assert (tmp_path / "out" / "vit_learned" / "model.safetensors").stat() == first
    table = (tmp_path / "out" / "README.md").read_text()
    assert table.count("test/accuracy") == 2
    assert zoo.load(tmp_path / "out" / "vit_rope_axial").predict is not None
