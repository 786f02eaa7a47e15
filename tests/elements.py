"""Pages as a browser would read them, for tests."""

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "img", "wbr"}


class Reader(HTMLParser):
    """What a browser would make of the page: elements with their attributes and their text, and what does not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.faults = [], [], []
        self.feed(text)
        self.close()
        self.faults += [element["name"] for element in self.open]

    def handle_starttag(self, tag, attrs):
        element = {"name": tag, "attributes": dict(attrs), "text": ""}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()["name"] != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find_named(self, name):
        return [element for element in self.elements if element["name"] == name]
