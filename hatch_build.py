"""Make the links of the README absolute in what is built: an index has no other files."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/transformer-zoo/zoo/blob/main/"
PICTURES = "https://raw.githubusercontent.com/transformer-zoo/zoo/main/"
# in a link around a picture, the second bracket follows a parenthesis
RELATIVE_LINK = re.compile(r"(!?)((?:\[[^\]]*|\))\]\()(?!https?:|#)(?=[^)\s])")


class AbsoluteReadme(MetadataHookInterface):
    """Reads README.md with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the text to the metadata of the package."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": make_absolute(text)}


def make_absolute(text: str) -> str:
    """Return Markdown whose links to files of the repository are addresses."""
    return RELATIVE_LINK.sub(
        lambda link: f"{link[1]}{link[2]}{PICTURES if link[1] else PAGES}", text
    )
