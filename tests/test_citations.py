"""Citations: complete entries of every paper that an encoding names."""

import re

import pytest

from zoo import registry
from zoo.citations import find_citations, read_citations
from zoo.cli import main


@pytest.mark.parametrize("name", registry.names("encodings"))
def test_every_encoding_has_complete_entries(name):
    for entry in find_citations(name):
        fields = dict(re.findall(r"^  (\w+) = \{(.+)\},$", entry, re.M))
        where = {"url"} if entry.startswith("@misc") else {"eprint", "archiveprefix"}
        assert {*fields} == {"title", "author", "year"} | where
        assert entry.count("{") == entry.count("}")
        surname = re.search(r"[\w-]+", fields["author"].partition(",")[0])[0].lower()
        assert re.match(rf"@(article|misc){{{surname}{fields['year']}\w+,\n", entry), entry
        # the docstring has the first author too; the year there may be that of a journal
        assert all(" and others" not in value for value in fields.values())


def test_no_entry_is_left_over_or_told_twice():
    named = {entry for name in registry.names("encodings") for entry in find_citations(name)}
    file = registry.find_member("encodings", "rope").path.with_name("references.bib")
    assert named == {*read_citations(file).values()}
    assert len(re.findall(r"^@(article|misc)", file.read_text(), re.M)) == len(named)


def test_an_encoding_prints_its_papers(capsys):
    assert main(["show", "comrope_ap", "cite=true"]) == 0
    assert capsys.readouterr().out == find_citations("comrope_ap")[0] + "\n"
