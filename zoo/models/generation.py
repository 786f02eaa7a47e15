"""Tokens as text, as soon as it is sure what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from zoo.attention.kv_cache import Context
from zoo.data.spec import Vocabulary


@torch.inference_mode()
def sample_tokens(
    model: nn.Module,
    prompt: Sequence[int],
    context: Context | None,
    generator: torch.Generator,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Iterator[int]:
    """Tokens that follow a prompt, without end. Without a context the whole text is read again for each.

    The model takes `context` and `last`, as `Decoder` does. What the context remembers is of inference mode.

    Raises OptionError where the model can go no further.
    """
    device = next(model.parameters()).device
    text = torch.tensor([prompt], device=device)
    logits = model(text, context=context, last=1)
    while True:
        token = sample_token(logits[0, -1], generator, temperature, top_k, top_p)
        yield token
        new = torch.tensor([[token]], device=device)
        text = new if context is not None else torch.cat([text, new], dim=1)
        logits = model(text, context=context, last=1)


def sample_token(
    logits: Tensor, generator: torch.Generator, temperature: float, top_k: int | None, top_p: float
) -> int:
    """A token drawn from logits [V] in float64 on the CPU, so that rounding elsewhere hardly ever changes a text."""
    logits = logits.double().cpu()
    if temperature == 0:
        return int(logits.argmax())
    return int(
        torch.multinomial(
            sampling_probabilities(logits, temperature, top_k, top_p), 1, generator=generator
        )
    )


def sampling_probabilities(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float
) -> Tensor:
    """Probabilities [V]: the `top_k` likeliest tokens, of which the fewest that together have a share of `top_p`."""
    logits, order = logits.sort(
        descending=True, stable=True
    )  # of equals the first, as `argmax` has it
    logits = (logits - logits[0]) / temperature  # which no small temperature makes infinite
    if top_k is not None:
        logits[top_k:] = float("-inf")
    likely = logits.softmax(-1)
    before = likely.cumsum(-1) - likely
    kept = likely.masked_fill(before >= top_p, 0)
    return torch.zeros_like(likely).scatter(0, order, kept / kept.sum())


UNFINISHED = "\ufffd"  # how a character is decoded of which bytes are still to come
HELD = 3  # tokens at most that wait for their character: UTF-8 has four bytes in one
BEFORE = (
    8  # tokens that new ones are decoded after: some vocabularies put a space between two words
)


class TextStreamer:
    """Takes tokens that follow a `prompt` and gives text, up to the first `stop`.

    What may yet turn out to begin a `stop` is held back.
    """

    def __init__(
        self, vocabulary: Vocabulary, stop: str | None = None, prompt: Sequence[int] = ()
    ) -> None:
        self.vocabulary, self.stop = vocabulary, stop
        self.text = ""
        self.stopped = False
        self._before = list(prompt[-BEFORE:])
        self._tokens: list[int] = []  # not yet in the text
        self._given = 0

    def put(self, token: int) -> str:
        """The text that one more token makes sure."""
        self._tokens.append(token)
        unfinished = self._decoded(len(self._tokens)).endswith(UNFINISHED)
        self._read(max(len(self._tokens) - HELD, 0) if unfinished else len(self._tokens))
        return self._up_to(len(self.text) - self._held())

    def end(self) -> str:
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
        return max(
            (n for n in range(1, len(self.stop)) if self.text.endswith(self.stop[:n])), default=0
        )

    def _up_to(self, end: int) -> str:
        given, self._given = self.text[self._given : end], max(end, self._given)
        return given
