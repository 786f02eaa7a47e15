"""The examples on the page about common mistakes run and print what it shows."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "mistakes.md"
EXAMPLES = doctest.DocTestParser().get_doctest(
    PAGE.read_text(encoding="utf-8"), {}, PAGE.name, str(PAGE), 0
)


def run(test, out):
    """Return how many examples of a page fail."""
    return doctest.DocTestRunner(verbose=False).run(test, out=out.append).failed


def test_the_lines_of_the_page_give_what_it_says():
    output = []
    assert run(EXAMPLES, output) == 0, "".join(output)


def test_each_mistake_is_followed_by_lines():
    mistakes = PAGE.read_text(encoding="utf-8").split('\n**"')[1:]
    assert len(mistakes) > 20
    assert [mistake.splitlines()[0] for mistake in mistakes if "```pycon\n" not in mistake] == []


def test_a_wrong_line_would_be_seen():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert run(wrong, []) == 1
