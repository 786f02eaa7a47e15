"""The laws of a server with log-probabilities: future, batch, cache, prefix, chunk, reference."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zoo.auditing.audit_report import AuditReport, LawResult
from zoo.auditing.completions import (
    CHOSEN,
    Completion,
    CompletionServer,
    Reading,
    RefusedError,
    compare_readings,
    find_since,
)
from zoo.auditing.subject import NotAskedError
from zoo.errors import DataError, OptionError
from zoo.suggestions import nearest

if TYPE_CHECKING:
    from torch import nn

WORDS = (
    "time",
    "water",
    "house",
    "river",
    "stone",
    "garden",
    "letter",
    "window",
    "summer",
    "winter",
    "paper",
    "silver",
    "table",
    "music",
    "forest",
    "bridge",
    "market",
    "story",
    "light",
    "shadow",
    "mountain",
    "engine",
    "island",
    "captain",
    "doctor",
    "evening",
    "morning",
    "number",
    "question",
    "village",
    "weather",
    "yellow",
    "orange",
    "simple",
    "quiet",
    "narrow",
    "ancient",
    "gentle",
)
BEGINNINGS = tuple(word for word in WORDS if len(word) == 5)
"""Words of one length, and of one token in most vocabularies: beginnings that move no block."""
COMPANY = 16  # other prompts of a batch
GENERATED = 24  # tokens that are generated, and scored again as a prompt
LONG = 256  # the same, of a long text
SAFETY = 16  # a bound is this many times the resolution
FINEST = 1e-4  # relative error of printed log-probabilities in float32
GRIDS = (("bfloat16", 2.0**-9, 2.0**-8), ("float16", 2.0**-14, 2.0**-11))
"""Dtypes of logits, the grid on which their differences lie, and their resolution."""


@dataclass
class ServerFinding:
    """The outcome of a law.

    Attributes:
        error: The largest error.
        since: The first position at which it breaks.
        cause: A sentence about the cause.
        bound: The largest error that rounding explains; None for that of the server's numbers.
    """

    error: float
    since: int | None = None
    cause: str | None = None
    bound: float | None = None


@dataclass
class ServerAuditor:
    """Asks the laws of a server.

    Args:
        server: The server.
        reference: The model that it should serve, with its tokenizer; None if it is not known.

    Attributes:
        notes: What is worth knowing, and breaks no law.
    """

    server: CompletionServer
    reference: tuple[nn.Module, Any] | None = None
    notes: list[str] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def write(self, count: int, *, is_new: bool = False) -> str:
        """Return random words; new ones begin as nothing that was ever sent."""
        words = self.draw.choices(WORDS, k=count)
        if is_new:
            words[:0] = random.SystemRandom().choices(BEGINNINGS, k=6)
        return " ".join(words)

    @cached_property
    def echoes(self) -> bool:
        """True if the server scores the tokens of a prompt.

        Raises:
            DataError: It gives no log-probabilities at all.
        """
        prompt = self.write(6)
        reason = "it returns none"
        try:
            if len(self.server.complete(prompt).reading) > 1:
                return True
        except RefusedError as error:
            reason = str(error)
        try:
            if self.server.complete(prompt, echo=False).reading:
                return False
        except RefusedError as error:
            reason = str(error)
        problem = f"the server gives no log-probabilities: {reason}"
        raise DataError(problem, place=self.server.url)

    @cached_property
    def dtype(self) -> tuple[str, float] | None:
        """The half precision of the server's logits and its resolution; None for others."""
        answers = [self.score(self.write(20), 4) for _ in range(2)]
        dtype = find_dtype([answer.reading for answer in answers])
        if dtype is not None:
            self.notes.append(f"the server computes logits in {dtype[0]}")
        return dtype

    @cached_property
    def bound(self) -> float:
        """The largest error that the precision of the server's numbers explains."""
        prompt = self.write(20)
        first, second = (self.server.complete(prompt, 4, echo=self.echoes) for _ in range(2))
        noise, _, _ = compare_readings(second.reading, first.reading)
        resolution = FINEST / SAFETY if self.dtype is None else self.dtype[1]
        return max(SAFETY * max(noise, resolution), FINEST)

    def score(self, prompt: str, count: int = 1) -> Completion:
        """Return the log-probabilities of a prompt and its continuation, as far as offered."""
        return self.server.complete(prompt, count, echo=self.echoes)

    def require_echo(self) -> None:
        """Check that prompts are scored.

        Raises:
            NotAskedError: They are not.
        """
        if not self.echoes:
            raise NotAskedError("the server scores no tokens of prompts (echo with logprobs)")

    def compare(
        self,
        tested: Completion,
        reference: Completion,
        way: str,
        positions: Sequence[int] | None = None,
    ) -> ServerFinding:
        """Compare two readings of the same tokens.

        Raises:
            NotAskedError: They share no tokens.
        """
        error, _, count = compare_readings(tested.reading, reference.reading, positions)
        if not count:
            raise NotAskedError("the answers have no tokens in common")
        since = None
        if error > self.bound:
            since = find_since(tested.reading, reference.reading, self.bound, positions)
        return ServerFinding(error, since, way)


def find_dtype(readings: Sequence[Reading]) -> tuple[str, float] | None:
    """Return the half precision on whose grid the logits lie, and its resolution; None for others.

    The difference of two log-probabilities at one position is that of their logits.
    """
    differences = []
    for reading in readings:
        for values in reading.values():
            sizes = sorted(value for token, value in values.items() if token != CHOSEN)
            differences += [b - a for a, b in pairwise(sizes) if b > a]
    for name, grid, resolution in GRIDS:
        hits = [abs(one / grid - round(one / grid)) < 0.06 for one in differences]
        if len(hits) >= 12 and sum(hits) > 0.95 * len(hits):
            return name, resolution
    return None


def join_worst(findings: Sequence[ServerFinding]) -> ServerFinding:
    """Return the finding with the largest error."""
    return max(findings, key=lambda finding: finding.error)


def ask_future(auditor: ServerAuditor) -> ServerFinding:
    """Ask `future`: a prompt scored alone and with other continuations."""
    auditor.require_echo()
    head = auditor.write(10)
    alone = auditor.score(head)
    places = range(alone.prompt_count)
    findings = []
    for _ in range(2):
        longer = auditor.score(f"{head} {auditor.write(8)}")
        # The last token of the prompt may join with letters that follow.
        places = range(_count_shared(alone, longer))
        findings.append(auditor.compare(longer, alone, "with another continuation", places))
    return join_worst(findings)


def _count_shared(first: Completion, second: Completion) -> int:
    """Return how many tokens of the prompts agree from the start."""
    count = 0
    for one, other in zip(first.tokens[: first.prompt_count], second.tokens, strict=False):
        if one != other:
            break
        count += 1
    return count


def ask_batch(auditor: ServerAuditor) -> ServerFinding:
    """Ask `batch`: a prompt alone and among others, in one request and in several at once."""
    prompt = auditor.write(12)
    others = [auditor.write(4 + 2 * number) for number in range(COMPANY)]
    alone = auditor.score(prompt, 4)
    findings, refusals = [], []
    for way, ask in (
        (f"among {COMPANY} others in a request", auditor.server.complete_together),
        (f"among {COMPANY} requests at once", auditor.server.complete_at_once),
    ):
        for row in (0, COMPANY):
            company = [*others[:row], prompt, *others[row:]]
            try:
                answer = ask(company, 4, echo=auditor.echoes)[row]
            except RefusedError as refusal:
                refusals.append(str(refusal))
                break
            if not auditor.echoes:
                # The count of a request is that of all its prompts.
                answer = _move(answer, alone.prompt_count)
            findings.append(auditor.compare(answer, alone, way))
    if not findings:
        raise NotAskedError(refusals[0])
    return join_worst(findings)


def _move(completion: Completion, start: int) -> Completion:
    """Return a completion whose first position is another one."""
    first = min(completion.reading, default=0)
    reading = {start + place - first: values for place, values in completion.reading.items()}
    return replace(completion, reading=reading, prompt_count=start)


def score_generated(auditor: ServerAuditor, prompt: str, count: int) -> ServerFinding:
    """Compare generated tokens with the same tokens as a prompt."""
    generated = auditor.score(prompt, count)
    start = generated.prompt_count
    if auditor.echoes:
        again = auditor.score(prompt + generated.text)
        shared = 0
        for one, other in zip(generated.tokens, again.tokens, strict=False):
            if one != other:
                break
            shared += 1
        if shared <= start + 1:
            raise NotAskedError("generated text is divided into other tokens as a prompt")
        way = "as a prompt and as they are generated"
        return auditor.compare(generated, again, f"tokens {way}", range(start, shared))
    findings = []
    for length in sorted({1, 2, count // 4, count // 2, count - 1}):
        text = "".join(generated.tokens[:length])
        again = auditor.score(prompt + text)
        if again.prompt_count == start + length:
            findings.append(
                auditor.compare(generated, again, "after a prompt and as it is generated")
            )
    if not findings:
        raise NotAskedError("generated text is divided into other tokens as a prompt")
    return join_worst(findings)


def ask_cache(auditor: ServerAuditor) -> ServerFinding:
    """Ask `cache`."""
    return join_worst(
        [score_generated(auditor, auditor.write(words), GENERATED) for words in (2, 12)]
    )


def ask_prefix(auditor: ServerAuditor) -> ServerFinding:
    """Ask `prefix`: texts cold and warm, and texts whose ends were sent after other beginnings."""
    prompt = auditor.write(24, is_new=True)
    cold = auditor.score(prompt, 2)
    auditor.score(f"{prompt} {auditor.write(4)}")
    findings = [auditor.compare(auditor.score(prompt, 2), cold, "with a warm prefix cache")]

    # A text whose numbers are known from its generation, after its end was sent elsewhere.
    body = auditor.write(16)
    head, other = (auditor.write(0, is_new=True) for _ in range(2))
    known = auditor.score(f"{head} {body}", GENERATED)
    text = known.text
    elsewhere = auditor.score(f"{other} {body}{text}")
    if auditor.echoes:
        again = auditor.score(f"{head} {body}{text}")
        shared = _count_shared(replace(known, prompt_count=len(known.tokens)), again)
        places = range(known.prompt_count, shared)
        if len(places) > 1:
            way = "after its end was sent with another beginning"
            findings.append(auditor.compare(again, known, way, places))
        findings.append(_compare_beginnings(auditor, elsewhere, again))
    return join_worst(findings)


def _compare_beginnings(
    auditor: ServerAuditor, first: Completion, second: Completion
) -> ServerFinding:
    """Compare the ends of texts with other beginnings: equal numbers are those of one of them."""
    count = min(len(first.tokens), len(second.tokens)) // 2
    first_end, second_end = (
        {place - len(one.tokens): values for place, values in one.reading.items()}
        for one in (first, second)
    )
    error, _, places = compare_readings(first_end, second_end, range(-count, -1))
    way = "a text has the numbers of one with another beginning"
    # Rounding hides no beginning: equal digits are read from one cache.
    return ServerFinding(1.0 if places and error == 0.0 else 0.0, None, way)


def ask_chunk(auditor: ServerAuditor) -> ServerFinding:
    """Ask `chunk`: long texts as a prompt, generated, and cut short."""
    prompt = auditor.write(12, is_new=True)
    findings = [score_generated(auditor, prompt, LONG)]
    if auditor.echoes:
        words = auditor.write(160, is_new=True).split()
        whole = auditor.score(" ".join(words))
        for count in (37, 90, 151):
            cut = auditor.score(" ".join(words[:count]))
            places = range(_count_shared(cut, whole))
            findings.append(auditor.compare(whole, cut, "in a longer prompt", places))
    return join_worst(findings)


def ask_reference(auditor: ServerAuditor) -> ServerFinding:
    """Ask `reference`: the model of transformers computes the same log-probabilities."""
    if auditor.reference is None:
        raise NotAskedError("no reference was named (reference=FOLDER)")
    import torch

    model, tokenizer = auditor.reference
    dtype = next(model.parameters()).dtype
    # The reference knows its own precision: a coarser one of the server is a difference.
    bound = max(SAFETY * torch.finfo(dtype).eps, FINEST)
    findings = []
    for words in (12, 60):
        prompt = auditor.write(words)
        answer = auditor.score(prompt)
        ids = _find_ids(tokenizer, prompt, answer)
        expected = replace(answer, reading=_read_reference(model, tokenizer, ids, answer))
        finding = auditor.compare(answer, expected, "other log-probabilities than the reference")
        finding.bound = bound
        if finding.error > bound:
            finding.since = find_since(answer.reading, expected.reading, bound)
            half = auditor.dtype
            name = str(dtype).removeprefix("torch.")
            # Only where half precision gives numbers as far from the reference.
            if half is not None and half[0] != name and finding.error <= SAFETY * half[1]:
                finding.cause = f"the server computes in {half[0]}, the reference in {name}"
        findings.append(finding)
    return join_worst(findings)


def _find_ids(tokenizer: Any, prompt: str, answer: Completion) -> list[int]:
    """Return the token ids of a prompt, with or without a start token, as the server has them."""
    for special in (True, False):
        ids: list[int] = tokenizer(prompt, add_special_tokens=special)["input_ids"]
        if len(ids) == answer.prompt_count:
            return ids
    problem = f"the tokenizer of the reference makes {len(ids)} tokens of a prompt"
    raise NotAskedError(f"{problem} of which the server makes {answer.prompt_count}")


def _read_reference(model: Any, tokenizer: Any, ids: list[int], answer: Completion) -> Reading:
    """Return the log-probabilities of the tokens of an answer by the reference."""
    import torch

    with torch.no_grad():
        device = next(model.parameters()).device
        logits = model(input_ids=torch.tensor([ids], device=device)).logits[0].float()
    scores = logits.log_softmax(-1).cpu()
    texts: dict[str, list[int]] = {}
    for number in range(min(len(tokenizer), scores.shape[-1])):
        texts.setdefault(tokenizer.decode([number]), []).append(number)
    reading: dict[int, dict[str, float]] = {}
    for place, values in answer.reading.items():
        if not 1 <= place <= len(ids):
            continue
        row = scores[place - 1]
        known = {
            text: float(row[texts[text][0]])
            for text in values
            if text != CHOSEN and len(texts.get(text, ())) == 1
        }
        if place < len(ids):
            known[CHOSEN] = float(row[ids[place]])
        if known:
            reading[place] = known
    return reading


SERVER_LAWS: Mapping[str, tuple[str, Callable[[ServerAuditor], ServerFinding]]] = MappingProxyType(
    {
        "future": ("what follows a prompt changes none of its tokens' scores", ask_future),
        "batch": ("a prompt is scored as alone, in any company", ask_batch),
        "cache": ("tokens are scored as a prompt as they were when generated", ask_cache),
        "prefix": ("what was sent before changes no scores", ask_prefix),
        "chunk": ("a long prompt is scored as its parts are", ask_chunk),
        "reference": ("the model of the reference gives the same scores", ask_reference),
    }
)
"""{law: (what it states, what asks it)}"""


def select_server_laws(names: Sequence[str] | None) -> list[str]:
    """Return names of laws, all by default.

    Raises:
        OptionError: There is no law of a name.
    """
    if names is None:
        return list(SERVER_LAWS)
    for name in names:
        if name not in SERVER_LAWS:
            problem = f"no law {name!r} of servers; {nearest(name, list(SERVER_LAWS))}"
            raise OptionError("laws", problem)
    if not names:
        raise OptionError("laws", "empty list; omit it to ask all laws")
    return [name for name in SERVER_LAWS if name in names]


def audit_server(
    server: CompletionServer,
    reference: tuple[nn.Module, Any] | None = None,
    laws: Sequence[str] | None = None,
) -> AuditReport:
    """Ask a server laws. It is sent prompts of random words, and nothing else.

    Args:
        server: The server.
        reference: The model of transformers that it should serve, and its tokenizer.
        laws: Names of laws; all by default.

    Raises:
        OptionError: There is no law of a name.
        DataError: The server is not reached, or gives no log-probabilities.
    """
    start = time.perf_counter()
    auditor = ServerAuditor(server, reference)
    results = []
    for name in select_server_laws(laws):
        statement, ask = SERVER_LAWS[name]
        result = LawResult(law=name, statement=statement, status="not asked")
        try:
            bound = auditor.bound
            finding = ask(auditor)
        except NotAskedError as reason:
            results.append(replace(result, reason=str(reason)))
            continue
        except RefusedError as refusal:
            results.append(replace(result, reason=f"the server refuses: {refusal}"))
            continue
        bound = bound if finding.bound is None else finding.bound
        result = replace(result, error=finding.error, bound=bound, status="kept")
        if finding.error > bound:
            result = replace(result, status="broken", since=finding.since, cause=finding.cause)
        results.append(result)
    return AuditReport(
        tuple(results),
        tuple(auditor.notes),
        f"{server.model} at {server.url}",
        {},
        time.perf_counter() - start,
    )
