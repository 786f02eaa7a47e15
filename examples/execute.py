"""Execute the notebooks of this folder and store their outputs: `make notebooks`."""

import argparse
import re
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
MACHINE_NOTES = ("TqdmWarning", "computes denormal numbers")
"""Words of messages that depend on the processor and on which packages are installed."""


def find_missing(path: Path) -> list[str]:
    """Return the modules that a notebook imports and that are not installed."""
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    names = dict.fromkeys(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))
    own = [file.stem for file in HERE.glob("*.py")]
    return [name for name in names if name not in own and find_spec(name) is None]


def is_machine_note(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is a message about this machine, which others do not get."""
    text = output.text if output.get("name") == "stderr" else ""
    return any(note in text for note in MACHINE_NOTES)


def execute_notebook(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(HERE)}}).execute()

    # Versions and timings of the machine would change with every execution.
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    for cell in notebook.cells:
        cell.metadata = {}
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not is_machine_note(output)]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    for path in sorted(HERE.glob("*.ipynb")):
        missing = find_missing(path)
        if not missing:
            execute_notebook(path)
        print(path.name, f"left as it is, without {', '.join(missing)}" if missing else "")
