"""Formulas of the site: LaTeX becomes MathML, which browsers show without scripts or network."""

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

MATHML = "http://www.w3.org/1998/Math/MathML"
FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
"""What pymdownx.arithmatex makes of `$$ .. $$` and `$ .. $`, with `generic: true`."""
ROWS = {f"{{{MATHML}}}{tag}" for tag in ("math", "mrow", "mstyle", "mtd")}
"""Elements whose children stand side by side."""
FUNCTION = "(?!mod$)[A-Za-z]{2,}"
CLOSING = (")", "]", "|", "\N{DOUBLE VERTICAL LINE}")


def typeset_page(page: str) -> str:
    """Replace the formulas of a page's HTML by MathML."""

    def typeset(found: re.Match) -> str:
        kind, latex = found.groups()
        if kind == "span":
            return typeset_formula(html.unescape(latex), is_block=False)
        # side by side, two statements would be wider than a page
        lines = html.unescape(latex).split(r"\qquad")
        made = "\n".join(typeset_formula(line, is_block=True) for line in lines)
        return f'<div class="formula">{made}</div>'

    return FORMULA.sub(typeset, page)


def typeset_formula(latex: str, *, is_block: bool) -> str:
    """Return the MathML of a formula.

    Raises:
        ValueError: The formula has a command that latex2mathml does not know.
    """
    made = convert(" ".join(latex.split()), display="block" if is_block else "inline")
    root = ElementTree.fromstring(made)
    unknown = [one.text for one in root.iter() if "\\" in (one.text or "")]
    if unknown:
        raise ValueError(f"{latex}: unknown {', '.join(unknown)}")
    for element in root.iter(f"{{{MATHML}}}mo"):
        if re.fullmatch(FUNCTION, element.text or ""):
            element.tag = f"{{{MATHML}}}mi"  # upright, and without the space of an operator
            element.attrib.clear()
    for element in [one for one in root.iter() if one.tag in ROWS]:
        _space_functions(element)
    ElementTree.register_namespace("", MATHML)
    return ElementTree.tostring(root, encoding="unicode")


def _space_functions(element: ElementTree.Element) -> None:
    """Put thin spaces around the functions of a row, as LaTeX does: `2 log x`, but `log(x)`."""
    spaced: list[ElementTree.Element] = []
    for one in [*element]:
        before = spaced[-1] if spaced else None
        if before is not None and _needs_space(before, one):
            spaced.append(ElementTree.Element(f"{{{MATHML}}}mspace", width="0.17em"))
        spaced.append(one)
    element[:] = spaced


def _needs_space(before: ElementTree.Element, after: ElementTree.Element) -> bool:
    """Return whether a thin space stands between two neighbours, one of which names a function."""
    if _is_function(before):
        first = next(leaf for leaf in after.iter() if len(leaf) == 0)
        return first.tag != f"{{{MATHML}}}mo" and not after.tag.endswith("}mspace")
    if before.tag.endswith(("}munder", "}munderover", "}mspace")):
        return False
    is_operand = before.tag != f"{{{MATHML}}}mo" or before.text in CLOSING
    return _is_function(after) and is_operand


def _is_function(element: ElementTree.Element) -> bool:
    """Return whether an element is the name of a function, perhaps with an index."""
    name = element[0] if element.tag.endswith(("}msub", "}msup", "}msubsup")) else element
    return name.tag == f"{{{MATHML}}}mi" and bool(re.fullmatch(FUNCTION, name.text or ""))
