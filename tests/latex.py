"""Read tables of LaTeX without LaTeX, and typeset them where the machine has it."""

import re
import shutil
import subprocess

DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
\input{table}
\end{document}
"""
RULES = ("toprule", "midrule", "bottomrule", "cmidrule")
COMMAND = re.compile(r"\\(textbf|underline)\{([^{}]*)\}")
MARK = re.compile(r"(?:\\rlap\{)?\$\^\{(\\\w+)\}\$\}?")


def read_table(text):
    """Check the form of a table; return its caption, its headings and its rows of (text, command, mark)."""
    text = re.sub(r"^%.*\n", "", text, flags=re.MULTILINE)
    open_environments = []
    for word, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if word == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert open_environments == []
    assert text.isascii()
    bare = re.sub(r"\\[{}\\&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert "#" not in bare

    (columns,) = re.findall(r"\\begin\{tabular\}\{(l+|lr*)\}", text)
    body = text.split(f"{{{columns}}}")[1].split(r"\end{tabular}")[0]
    assert [one for one in RULES if rf"\{one}" not in body] in ([], ["cmidrule"])
    lines = [line.strip() for line in body.splitlines()]
    rows = [line.removesuffix(r" \\") for line in lines if line.endswith(r"\\")]
    assert all(line.endswith(r"\\") or line.startswith("\\") or not line for line in lines)
    cells = [re.split(r" ?(?<!\\)& ", row) for row in rows]
    groups = [cells.pop(0)] if r"\multicolumn" in rows[0] else []
    for group in groups:
        widths = [int(one) for one in re.findall(r"\\multicolumn\{(\d+)\}", rows[0])]
        assert 1 + sum(widths) == len(columns), group
    assert {len(row) for row in cells} == {len(columns)}
    heads, *rest = cells
    (caption,) = re.findall(r"\\caption\{(.*)\}\n", text)
    return caption, heads, [[row[0], *map(read_cell, row[1:])] for row in rest]


def read_cell(text):
    """Return what a cell shows, the command around it and its mark."""
    text = re.sub(r" \{\\footnotesize .*\}$", "", text)
    mark = MARK.search(text)
    text = MARK.sub("", text)
    command = COMMAND.fullmatch(text)
    shown = (command[2] if command else text).replace("$-$", "-")
    return shown, command[1] if command else "", mark[1] if mark else ""


def typeset(text, folder):
    """Typeset a table with whichever LaTeX the machine has; return its PDF, None without one."""
    folder.mkdir(exist_ok=True)
    (folder / "table.tex").write_text(text, encoding="utf-8")
    (folder / "paper.tex").write_text(DOCUMENT, encoding="utf-8")
    program = shutil.which("tectonic") or shutil.which("pdflatex")
    if program is None:
        return None
    options = [] if program.endswith("tectonic") else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run(
        [program, *options, "paper.tex"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return folder / "paper.pdf"
