"""Names that a careless terminal, table or page would obey, and images that have them."""

from PIL import Image

# a title for the terminal, the order of letters, a line of its own, a tag, a cell, a template
NAME = "cat\x1b]0;owned\x07\u202egnp\n<img src=x onerror=alert(1)>|`{{7}}${x}"
# the library that reads class folders does not see one whose name has two lines
CLASS = NAME.replace("\n", "")
SHOWN = r"cat\x1b]0;owned\x07\u202egnp\n"


def make_images(folder):
    """Class folders of two classes, of which one has a hostile name and a file that has it too."""
    for split in ("train", "val", "test"):
        for label, shade in ((CLASS, 0), ("dog", 255)):
            place = folder / split / label
            place.mkdir(parents=True)
            for number in range(4):
                Image.new("L", (8, 8), abs(shade - number)).save(place / f"{number}.png")
    hostile = folder.parent / f"{NAME}.png"
    Image.new("L", (8, 8)).save(hostile)
    return hostile
