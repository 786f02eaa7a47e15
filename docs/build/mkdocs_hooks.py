"""MkDocs hooks: list the pages of encodings, typeset formulas, make pages of comparisons."""

import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel
from mkdocs.utils import get_relative_url

from zoo import registry
from zoo.comparison.page.comparison_page import render

sys.path.insert(0, str(Path(__file__).parent))
from evidence_data import read_record
from record_figures import list_records
from typeset import typeset_page


def on_config(config):
    groups = [
        {registry.GROUPS[group]: [f"encodings/{name}.md" for name in names]}
        for group, names in registry.group_encodings().items()
    ]
    config.nav = [_add_groups(entry, groups) for entry in config.nav]
    return config


def _add_groups(entry, groups):
    """Append the pages of encodings, by group, to the section that has their index."""
    ((title, listed),) = entry.items()
    if "encodings.md" in listed and isinstance(listed, list):
        listed = listed + groups
    return {title: listed}


def on_files(files, config):
    docs = Path(config.docs_dir)
    # of docs/records the site has only these pages
    for folder in list_records():
        page = (folder / "results.html").relative_to(docs).as_posix()
        content = render(read_record(folder))
        made = File.generated(config, page, content=content, inclusion=InclusionLevel.INCLUDED)
        files.append(made)
    return files


def on_page_content(html, page, config, files):
    return _mend_regions(_move_images(typeset_page(html), page))


def _move_images(html, page):
    """Address images that are written as HTML from the folder that the site has for the page."""
    images = get_relative_url("images/", page.url)
    return html.replace('<img src="images/', f'<img src="{images}')


def _mend_regions(html):
    """Let keys scroll wide formulas and tables: what scrolls can have the focus."""
    html = html.replace('<div class="formula">', '<div class="formula" tabindex="0">')
    return re.sub(r"<table>(?=\s*<thead)", '<table tabindex="0">', html)


def on_post_page(output, page, config):
    # the theme gives its dialog of search no name
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')
