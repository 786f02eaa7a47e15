"""The notebook of docs/tour.md: `python docs/build/tour_notebook.py`, then `make notebooks`.

Its text and code are those of the page; where the page has a picture, the notebook draws it.
"""

import doctest
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tour.md"
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
PARTS = re.compile(
    r"```pycon\n(?P<code>.*?)```|!\[.*?\]\(images/tour/(?P<picture>\w+)\.svg\)", re.S
)
SETUP = """
try:
    from tour_pictures import show
except ImportError:  # only a clone of the project can draw them
    show = "The picture of {} is on https://transformer-zoo.github.io/zoo/tour".format
""".strip()


def list_cells(page: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, source) of the cells: markdown or code."""
    yield "code", SETUP
    end = 0
    for part in PARTS.finditer(page):
        if text := _link_from_examples(page[end : part.start()]):
            yield "markdown", text
        if part["picture"]:
            yield "code", f'show("{part["picture"]}")'
        else:
            yield from (("code", source) for source in _split_code(part["code"]))
        end = part.end()
    yield "markdown", _link_from_examples(page[end:])


def _split_code(block: str) -> Iterator[str]:
    """Yield the source of cells, each of which ends where the page shows a result.

    A call that raises an error on the page is left out: it would end the notebook.
    """
    lines = ""
    for example in doctest.DocTestParser().get_examples(block):
        if example.exc_msg is None:
            lines += example.source
            if example.want:
                yield lines.rstrip()
                lines = ""
    if lines:
        yield lines.rstrip()


def _link_from_examples(text: str) -> str:
    """Return Markdown whose links to pages of docs hold in examples/."""
    return re.sub(r"\]\((?!https?:)", "](../docs/", text).strip()


def write_notebook(path: Path = NOTEBOOK) -> None:
    """Write the notebook without outputs."""
    import nbformat

    made = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    cells = [made[kind](source) for kind, source in list_cells(PAGE.read_text(encoding="utf-8"))]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    # the blank lines of a file, which a page has not
    for command in (["check", "--select=I", "--fix"], ["format"]):
        subprocess.run(["ruff", *command, "--quiet", path], check=True)


if __name__ == "__main__":
    write_notebook()
