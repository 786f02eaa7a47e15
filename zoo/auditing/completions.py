"""Ask a server for log-probabilities by the completions interface; only prompts are sent to it."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError, escape_text
from zoo.suggestions import nearest

TRIES = 6  # of a request that a server refuses for its rate
LONGEST_WAIT = 30.0  # seconds between two tries
TOP = 5  # most likely tokens whose log-probabilities are asked

Reading = Mapping[int, Mapping[str, float]]
"""{position of a token: {token that may stand there: its log-probability}}"""
CHOSEN = "\0"
"""The key of the token that stands at a position, which the most likely ones may lack."""


@dataclass(frozen=True)
class Completion:
    """The scored tokens of a prompt and of what follows it.

    Attributes:
        tokens: Texts of the tokens: the prompt's, if it was scored, and the generated ones.
        reading: Log-probabilities by position; position 0 is the first token of the prompt.
        prompt_count: Number of tokens of the prompt.
        text: The generated text.
    """

    tokens: tuple[str, ...]
    reading: Reading
    prompt_count: int
    text: str


class RefusedError(Exception):
    """The server refuses a request; the message is its reason."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, which would send prompts to another address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class CompletionServer:
    """A server with a completions interface.

    Attributes:
        url: Its address, up to and including /v1.
        model: The name of the model.
        timeout: Seconds to wait for an answer.
    """

    url: str
    model: str
    timeout: float = 60.0

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request, again where the server limits their rate, and return the JSON answer.

        Raises:
            RefusedError: The server refuses the request itself.
            RecipeError: There is nothing at the address.
            DataError: The server is not reached, answers too late, or with something else.
        """
        opener = urllib.request.build_opener(_NoRedirect())
        address = f"{self.url}/{path}"
        for attempt in range(TRIES):
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(address, data, headers)
            try:
                with opener.open(request, timeout=self.timeout) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                if error.code in (429, 503) and attempt < TRIES - 1:
                    time.sleep(_read_wait(error.headers.get("Retry-After"), attempt))
                    continue
                raise self._describe_refusal(address, error) from None
            except TimeoutError:
                problem = f"no answer within {self.timeout:g} seconds; raise timeout="
                raise DataError(problem, place=address) from None
            except (urllib.error.URLError, OSError) as error:
                reason = getattr(error, "reason", error)
                if isinstance(reason, TimeoutError):
                    problem = f"no answer within {self.timeout:g} seconds; raise timeout="
                    raise DataError(problem, place=address) from None
                problem = f"the server cannot be reached: {escape_text(str(reason))}"
                raise DataError(problem, place=address) from None
            except ValueError:
                raise DataError("the answer is no JSON", place=address) from None
        raise AssertionError("the last try returns or raises")

    def _describe_refusal(self, address: str, error: urllib.error.HTTPError) -> Exception:
        reason = _read_reason(error)
        if error.code == 404 and address.endswith("/completions"):
            # Servers answer the same to an unknown model as to an unknown address.
            problem = f"{self.url}: no completions interface for model {self.model!r}: {reason}"
            remedy = "name the address up to /v1, as in http://HOST/v1, and a model that it serves"
            return RecipeError(ConfigIssue(ARGUMENT, "", escape_text(problem), remedy))
        if error.code in (301, 302, 303, 307, 308):
            target = error.headers.get("Location", "another address")
            problem = escape_text(f"{self.url}: redirects to {target}")
            return RecipeError(ConfigIssue(ARGUMENT, "", problem, "name that address"))
        if error.code in (401, 403):
            problem = f"the server asks for a key, and no keys are sent (HTTP {error.code})"
            return DataError(problem, place=address)
        if error.code in (429, 503):
            problem = f"the server limits the rate of requests, {TRIES} tries failed"
            return DataError(problem, place=address)
        return RefusedError(f"HTTP {error.code}: {reason}")

    def list_models(self) -> list[str]:
        """Return the names of the models; none if the server does not list them."""
        try:
            answer = self.request("models")
            return [str(one["id"]) for one in answer["data"]]
        except (RefusedError, KeyError, TypeError):
            return []

    def complete(self, prompt: str, count: int = 1, *, echo: bool = True) -> Completion:
        """Return the log-probabilities of a prompt and of tokens that follow it.

        Args:
            prompt: The prompt.
            count: Number of tokens to generate.
            echo: Score the tokens of the prompt, too.

        Raises:
            RefusedError: The server refuses that.
        """
        answer = self.request("completions", self._make_body(prompt, count, echo=echo))
        return self._read(answer, 0, count, echo=echo)

    def complete_together(
        self, prompts: Sequence[str], count: int = 1, *, echo: bool = True
    ) -> list[Completion]:
        """Return the same for prompts that are sent as one request.

        Raises:
            RefusedError: The server takes one prompt only.
        """
        answer = self.request("completions", self._make_body(list(prompts), count, echo=echo))
        choices = answer.get("choices") or []
        if len(choices) != len(prompts):
            raise RefusedError(f"{len(choices)} answers to {len(prompts)} prompts")
        return [self._read(answer, row, count, echo=echo) for row in range(len(prompts))]

    def complete_at_once(
        self, prompts: Sequence[str], count: int = 1, *, echo: bool = True
    ) -> list[Completion]:
        """Return the same for prompts that are sent in requests of their own at the same time."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda one: self.complete(one, count, echo=echo), prompts))

    def _make_body(self, prompt: str | list[str], count: int, *, echo: bool) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0,
            "logprobs": TOP,
        }
        return {**body, "echo": True} if echo else body

    def _read(self, answer: Any, row: int, count: int, *, echo: bool) -> Completion:
        try:
            choices = sorted(answer["choices"], key=lambda one: one.get("index", 0))
            choice = choices[row]
            tokens, scores, tops = _read_scores(choice.get("logprobs") or {})
            prompt_count = len(tokens) - count
            if not echo:
                prompt_count = int((answer.get("usage") or {}).get("prompt_tokens", 0))
            start = 0 if echo else prompt_count
            reading = {}
            for number, (score, top) in enumerate(zip(scores, tops, strict=True)):
                values = {} if score is None else {CHOSEN: float(score)}
                # Several tokens may have one text, of which the mapping keeps any.
                values |= {
                    token: float(value)
                    for token, value in (top or {}).items()
                    if value is not None and "\ufffd" not in token and token
                }
                if values:
                    reading[start + number] = values
            return Completion(tuple(tokens), reading, prompt_count, str(choice.get("text", "")))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            place = f"{self.url}/completions"
            raise DataError("the answer is none of a completions interface", place=place) from None


def _read_scores(logprobs: Any) -> tuple[list[str], list[Any], list[Any]]:
    """Return tokens, their log-probabilities, and {token: log-probability} of the likeliest ones.

    Some servers, such as llama.cpp's, answer as chat interfaces do, with an entry for each token.
    """
    if "content" in logprobs:
        entries = logprobs["content"] or []
        tops = [
            {top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()}
            for entry in entries
        ]
        return [one["token"] for one in entries], [one["logprob"] for one in entries], tops
    tokens = logprobs.get("tokens") or []
    scores = logprobs.get("token_logprobs") or []
    return tokens, scores, logprobs.get("top_logprobs") or [None] * len(tokens)


def connect(url: str, model: str | None, timeout: float) -> CompletionServer:
    """Return the server of an address, with the name of its model.

    Raises:
        RecipeError: It has no such model, or several to choose from.
        DataError: It is not reached.
    """
    server = CompletionServer(url.rstrip("/"), model or "", timeout)
    names = server.list_models()
    if model is None and len(names) != 1:
        problem = "the server lists no models" if not names else "the server has several models"
        remedy = "name one" if not names else f"name one of {', '.join(names[:8])}"
        raise RecipeError(ConfigIssue(ARGUMENT, "model", problem, escape_text(remedy)))
    if model is not None and names and model not in names:
        problem = escape_text(f"the server has no model {model!r}; {nearest(model, names)}")
        raise RecipeError(ConfigIssue(ARGUMENT, "model", problem))
    return CompletionServer(server.url, model or names[0], timeout)


def _read_wait(header: str | None, attempt: int) -> float:
    """Return the seconds to wait before the next try."""
    try:
        return min(max(float(header or ""), 0.0), LONGEST_WAIT)
    except ValueError:
        return min(2.0**attempt, LONGEST_WAIT)


def _read_reason(error: urllib.error.HTTPError) -> str:
    """Return the reason of a refusal, on one line."""
    try:
        text = error.read(2000).decode("utf-8", "replace")
        body = json.loads(text)
        inner = body.get("error", body) if isinstance(body, dict) else body
        text = inner.get("message", text) if isinstance(inner, dict) else str(inner)
    except (ValueError, OSError):
        text = error.reason or ""
    return escape_text(" ".join(str(text).split())[:160])


def compare_readings(
    tested: Reading, reference: Reading, positions: Sequence[int] | None = None
) -> tuple[float, int | None, int]:
    """Return the largest difference of log-probabilities relative to the largest size of one.

    Args:
        tested: What a server said.
        reference: What it should have said.
        positions: Positions to compare; by default all that both have.

    Returns:
        The error, the position where it is, and the number of positions compared.
    """
    differences: dict[int, float] = {}
    largest = 1e-30
    for position in sorted(set(tested) & set(reference)):
        if positions is not None and position not in positions:
            continue
        first, second = tested[position], reference[position]
        shared = set(first) & set(second)
        if not shared:
            # Not even the most likely tokens agree.
            if len(first) > 1 and len(second) > 1:
                differences[position] = max(map(abs, second.values()))
            continue
        finite = [key for key in shared if math.isfinite(second[key])]
        differences[position] = max((abs(first[key] - second[key]) for key in finite), default=0.0)
        largest = max(largest, *(abs(second[key]) for key in finite), 1e-30)
    if not differences:
        return 0.0, None, 0
    place = max(differences, key=lambda position: differences[position])
    return differences[place] / largest, place, len(differences)


def find_since(
    tested: Reading, reference: Reading, bound: float, positions: Sequence[int] | None = None
) -> int | None:
    """Return the first position at which readings differ by more than a bound."""
    largest = max((abs(v) for values in reference.values() for v in values.values()), default=1.0)
    for position in sorted(set(tested) & set(reference)):
        if positions is None or position in positions:
            error, _, _ = compare_readings(
                {position: tested[position]}, {position: reference[position]}
            )
            scale = max(map(abs, reference[position].values()), default=0.0)
            if error * scale > bound * largest:
                return position
    return None
