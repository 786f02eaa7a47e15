"""Tokens as text, as soon as it is sure what they say."""

from __future__ import annotations

from zoo.samples import Vocabulary

UNFINISHED = "\ufffd"  # how a character is decoded of which bytes are still to come


class Writer:
    """Takes tokens and gives text, up to the first `stop`. What may yet turn out to begin a `stop` is held back."""

    def __init__(self, vocabulary: Vocabulary, stop: str | None = None) -> None:
        self.vocabulary, self.stop = vocabulary, stop
        self.text = ""
        self.stopped = False
        self._tokens: list[int] = []  # of an unfinished character
        self._given = 0

    def take(self, token: int) -> str:
        """The text that one more token makes sure."""
        self._tokens.append(token)
        text = self.vocabulary.decode(self._tokens)
        if text.endswith(UNFINISHED) and len(self._tokens) < 4:  # UTF-8 has at most four bytes
            return ""
        self._tokens, self.text = [], self.text + text
        if self.stop and self.stop in self.text:
            self.text, self.stopped = self.text.partition(self.stop)[0], True
        return self._up_to(len(self.text) - self._held())

    def rest(self) -> str:
        """What was held back, at the end."""
        return self._up_to(len(self.text))

    def _held(self) -> int:
        if not self.stop or self.stopped:
            return 0
        return max((n for n in range(1, len(self.stop)) if self.text.endswith(self.stop[:n])), default=0)

    def _up_to(self, end: int) -> str:
        given, self._given = self.text[self._given : end], max(end, self._given)
        return given
