"""Tokens as text, as soon as it is sure what they say."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.samples import Vocabulary

UNFINISHED = "\ufffd"  # how a character is decoded of which bytes are still to come
HELD = 3  # tokens at most that wait for their character: UTF-8 has four bytes in one
BEFORE = 8  # tokens that new ones are decoded after: some vocabularies put a space between two words


class Writer:
    """Takes tokens that follow a `prompt` and gives text, up to the first `stop`.

    What may yet turn out to begin a `stop` is held back.
    """

    def __init__(self, vocabulary: Vocabulary, stop: str | None = None, prompt: Sequence[int] = ()) -> None:
        self.vocabulary, self.stop = vocabulary, stop
        self.text = ""
        self.stopped = False
        self._before = list(prompt[-BEFORE:])
        self._tokens: list[int] = []  # not yet in the text
        self._given = 0

    def take(self, token: int) -> str:
        """The text that one more token makes sure."""
        self._tokens.append(token)
        unfinished = self._decoded(len(self._tokens)).endswith(UNFINISHED)
        self._read(max(len(self._tokens) - HELD, 0) if unfinished else len(self._tokens))
        return self._up_to(len(self.text) - self._held())

    def rest(self) -> str:
        """What was held back, at the end."""
        self._read(len(self._tokens))
        return self._up_to(len(self.text))

    def _decoded(self, count: int) -> str:
        """What so many of the new tokens add to the text."""
        known = len(self.vocabulary.decode(self._before))
        return self.vocabulary.decode([*self._before, *self._tokens[:count]])[known:]

    def _read(self, count: int) -> None:
        if self.stopped:
            return
        self.text += self._decoded(count)
        self._before = [*self._before, *self._tokens[:count]][-BEFORE:]
        del self._tokens[:count]
        if self.stop and self.stop in self.text:
            self.text, self.stopped = self.text.partition(self.stop)[0], True

    def _held(self) -> int:
        if not self.stop or self.stopped:
            return 0
        return max((n for n in range(1, len(self.stop)) if self.text.endswith(self.stop[:n])), default=0)

    def _up_to(self, end: int) -> str:
        given, self._given = self.text[self._given : end], max(end, self._given)
        return given
