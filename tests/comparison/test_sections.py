"""Text and page of a comparison have the same sections, in one order."""

import html
import re
from pathlib import Path

from zoo.comparison.outputs import read_comparison
from zoo.comparison.page.comparison_page import render
from zoo.comparison.sections import SECTIONS
from zoo.comparison.text import format_comparison
from zoo.reporting.html import break_words
from zoo.utils import escape_strings

RECORD = Path(__file__).parents[2] / "docs/records/counting"


def test_text_and_page_say_the_same_in_the_same_order():
    comparison = read_comparison(RECORD)
    built = [build(comparison) for build in SECTIONS.values() if build is not None]
    sections = [section for section in built if section is not None]
    titles = [section.title for section in sections]
    assert len(titles) >= 5
    text, page = format_comparison(comparison), render(comparison)
    for heading, report in ((r"^## (.*)$", text), (r"<h2>(.*?)</h2>", page)):
        found = re.findall(heading, report, re.MULTILINE)
        assert [title for title in found if title in titles] == titles
    for sentence in (one for section in sections for one in (*section.sentences, *section.items)):
        assert escape_strings(sentence) in text
        shown = (str(html.escape(sentence, quote=False)), str(break_words(sentence)))
        assert any(html.unescape(one) in html.unescape(page) for one in shown)
