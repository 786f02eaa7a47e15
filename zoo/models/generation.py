"""Sample tokens from a language model, and decode them to text one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from zoo.attention.layer import Context
from zoo.data.spec import Vocabulary

# The replacement character, to which an incomplete UTF-8 sequence decodes.
INCOMPLETE = "\ufffd"
# Tokens that may wait for the end of their character, which has at most 4 bytes.
MAX_HELD_TOKENS = 3
# Earlier tokens that are decoded together with new ones, because some vocabularies put a space
# between words only in context.
CONTEXT_TOKENS = 8


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
    """Yield tokens that continue a prompt, without end.

    Args:
        model: A language model that accepts `context` and `last`, such as `Decoder`.
        prompt: The tokens to continue.
        context: An empty context to fill, such as a `KeyValueCache`. None: the model reads all
            tokens again for each new one.
        generator: The random generator to draw with.
        temperature: Divisor of the logits; 0 takes the most likely token.
        top_k: Draw from this many most likely tokens.
        top_p: Draw from the smallest set of most likely tokens with at least this probability.

    Raises:
        OptionError: The model cannot continue the tokens.
    """
    device = next(model.parameters()).device
    tokens = torch.tensor([prompt], device=device)
    logits = model(tokens, context=context, last=1)
    while True:
        token = sample_token(logits[0, -1], generator, temperature, top_k, top_p)
        yield token
        new = torch.tensor([[token]], device=device)
        # a context remembers what came before
        tokens = new if context is not None else torch.cat([tokens, new], dim=1)
        logits = model(tokens, context=context, last=1)


def sample_token(
    logits: Tensor, generator: torch.Generator, temperature: float, top_k: int | None, top_p: float
) -> int:
    """Draw a token from logits [V]."""
    # In float64 on the CPU, so that the same seed rarely gives another token on another device.
    logits = logits.double().cpu()
    if temperature == 0:
        return int(logits.argmax())
    probabilities = sampling_probabilities(logits, temperature, top_k, top_p)
    return int(torch.multinomial(probabilities, 1, generator=generator))


def sampling_probabilities(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float
) -> Tensor:
    """Compute the probabilities [V] to draw from. Ties are broken in favour of lower tokens."""
    logits, order = logits.sort(descending=True, stable=True)
    # The largest becomes 0, so that no small temperature makes it infinite.
    logits = (logits - logits[0]) / temperature
    if top_k is not None:
        logits[top_k:] = float("-inf")
    likely = logits.softmax(-1)
    # A token is kept if all likelier ones together do not reach top_p.
    before = likely.cumsum(-1) - likely
    nucleus = likely.masked_fill(before >= top_p, 0)
    return torch.zeros_like(likely).scatter(0, order, nucleus / nucleus.sum())


class TextStreamer:
    """A decoder of tokens one by one, up to the first occurrence of `stop`.

    Incomplete characters and text that may begin a `stop` are held back.
    """

    def __init__(
        self, vocabulary: Vocabulary, stop: str | None = None, prompt: Sequence[int] = ()
    ) -> None:
        self.vocabulary, self.stop = vocabulary, stop
        self.text = ""
        self.stopped = False
        self._context = list(prompt[-CONTEXT_TOKENS:])
        self._pending: list[int] = []  # tokens that are not in `text` yet
        self._returned = 0

    def put(self, token: int) -> str:
        """Add a token, and return the new text that is now certain."""
        self._pending.append(token)
        count = len(self._pending)
        if self._decode(count).endswith(INCOMPLETE):
            count = max(count - MAX_HELD_TOKENS, 0)
        self._append(count)
        return self._return_up_to(len(self.text) - self._count_held())

    def end(self) -> str:
        """Return the text that was held back, after the last token."""
        self._append(len(self._pending))
        return self._return_up_to(len(self.text))

    def _decode(self, count: int) -> str:
        """Decode the first `count` pending tokens."""
        start = len(self.vocabulary.decode(self._context))
        return self.vocabulary.decode([*self._context, *self._pending[:count]])[start:]

    def _append(self, count: int) -> None:
        """Move `count` pending tokens to the text."""
        if self.stopped:
            return
        self.text += self._decode(count)
        self._context = [*self._context, *self._pending[:count]][-CONTEXT_TOKENS:]
        del self._pending[:count]
        if self.stop and self.stop in self.text:
            self.text, self.stopped = self.text.partition(self.stop)[0], True

    def _count_held(self) -> int:
        """Count the last characters of the text that may begin a stop."""
        if not self.stop or self.stopped:
            return 0
        lengths = range(len(self.stop) - 1, 0, -1)
        return next((n for n in lengths if self.text.endswith(self.stop[:n])), 0)

    def _return_up_to(self, end: int) -> str:
        new, self._returned = self.text[self._returned : end], max(end, self._returned)
        return new
