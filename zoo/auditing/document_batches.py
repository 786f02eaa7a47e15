"""Laws of the batches that a collator or a packer builds from documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.auditing.audit_report import LawResult
from zoo.auditing.subject import NotAskedError
from zoo.errors import OptionError

IGNORED = -100  # label of a token without a loss
LENGTHS = ("cu_seq_lens_q", "cu_seq_lens", "cu_seqlens", "cu_seqlens_q")
"""Names of cumulative lengths: where the texts of a row, or of all rows, begin and end."""
DOCUMENTS = ("seq_idx", "document_ids", "documents", "segment_ids", "sequence_ids")
"""Names of the number of each token's text."""


@dataclass(frozen=True)
class BatchRow:
    """A row of a batch, and which document each token is from.

    Attributes:
        place: The batch and the row, for messages.
        ids: Token ids [N].
        document: Number of the document of each token [N]; -1 for padding.
        start: The token [N] at which the part of the document begins in this row.
        batch: The fields of the row.
    """

    place: str
    ids: Tensor
    document: Tensor
    start: Tensor
    batch: Mapping[str, Tensor]

    def name(self, token: int) -> str:
        """Return a token with its place, for a sentence."""
        return f"token {token} of {self.place}"


@dataclass(frozen=True)
class BatchFault:
    """How batches break a law.

    Attributes:
        count: Number of tokens that break it.
        since: The first token in its row.
        cause: A sentence.
        explanation: A key of `EXPLANATIONS`, or None.
    """

    count: int
    since: int
    cause: str
    explanation: str | None = None


class DocumentMatcher:
    """Finds documents, or parts of them, in rows of tokens.

    Args:
        documents: Token ids of each document.
    """

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        self.documents = [list(map(int, one)) for one in documents]
        self.used = [0] * len(self.documents)
        self.words = {token for document in self.documents for token in document}

    def match(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """Return the document of each token, and the token at which its part begins.

        Tokens of no document are separators or padding: -1, or the document before them if it
        ends there.
        """
        numbers, starts, place = [-1] * len(ids), [0] * len(ids), 0
        while place < len(ids):
            number, length = self._find(ids, place)
            if not length:
                starts[place] = place
                place += 1
                continue
            for token in range(place, place + length):
                numbers[token], starts[token] = number, place
            self.used[number] += length
            place += length
        return numbers, starts

    def _find(self, ids: list[int], place: int) -> tuple[int, int]:
        """Return the document that continues for the most tokens, and their number."""
        best = (-1, 0)
        for number, document in enumerate(self.documents):
            used = self.used[number]
            if used >= len(document) or document[used] != ids[place]:
                continue
            length = 1
            while (
                used + length < len(document)
                and place + length < len(ids)
                and document[used + length] == ids[place + length]
            ):
                length += 1
            best = max(best, (number, length), key=lambda pair: pair[1])
        return best


def read_rows(
    batches: Iterable[Any], documents: Sequence[Sequence[int]]
) -> tuple[list[BatchRow], DocumentMatcher]:
    """Read batches, and find the documents in their rows.

    Raises:
        OptionError: A batch has no token ids.
    """
    matcher = DocumentMatcher(documents)
    rows = []
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping) or "input_ids" not in batch:
            raise OptionError("batches", f"batch {number} is no mapping with input_ids")
        fields = {
            name: torch.as_tensor(value)
            for name, value in batch.items()
            if isinstance(value, Tensor | list | tuple)
        }
        ids = fields["input_ids"]
        if ids.dim() not in (1, 2):
            raise OptionError("batches", f"input_ids of batch {number} has {ids.dim()} axes")
        ids = ids.reshape(-1, ids.shape[-1])
        for row in range(len(ids)):
            numbers, starts = matcher.match(ids[row].tolist())
            own = {
                name: value if name in LENGTHS or len(value) != len(ids) else value[row]
                for name, value in fields.items()
                if value.dim() > 0
            }
            if fields["input_ids"].dim() == 1:
                own = fields
            place = f"row {row} of batch {number}"
            rows.append(BatchRow(place, ids[row], torch.tensor(numbers), torch.tensor(starts), own))
    if not rows:
        raise OptionError("batches", "there are no batches")
    return rows, matcher


def check_tokens(rows: list[BatchRow], matcher: DocumentMatcher) -> BatchFault | None:
    """Check that every token of the documents occurs once, in order."""
    for row in rows:
        strange = [
            token
            for token in range(len(row.ids))
            if row.document[token] < 0 and int(row.ids[token]) in matcher.words
        ]
        if strange and not _is_filler(row, matcher):
            cause = f"{row.name(strange[0])} continues no document"
            return BatchFault(len(strange), strange[0], cause)
    missing = [
        (number, len(document) - used)
        for number, (document, used) in enumerate(zip(matcher.documents, matcher.used, strict=True))
        if used < len(document)
    ]
    if missing:
        number, count = missing[0]
        cause = f"document {number} lacks its last {count:,} of {len(matcher.documents[number]):,}"
        return BatchFault(sum(count for _, count in missing), 0, f"{cause} tokens")
    return None


def _is_filler(row: BatchRow, matcher: DocumentMatcher) -> bool:
    """Return whether all tokens of no document in a row are hidden by its mask."""
    mask = row.batch.get("attention_mask")
    return mask is not None and mask.dim() == 1 and not bool(mask[row.document < 0].any())


def check_positions(rows: list[BatchRow], matcher: DocumentMatcher) -> BatchFault | None:
    """Check that positions restart where a document begins, and grow by 1 within it."""
    if not any("position_ids" in row.batch for row in rows):
        raise NotAskedError("the batches have no position_ids")
    for row in rows:
        positions = row.batch.get("position_ids")
        if positions is None:
            continue
        broken = []
        for token in range(len(row.ids)):
            if row.document[token] < 0:
                continue
            is_first = int(row.start[token]) == token
            if not is_first and int(positions[token]) != int(positions[token - 1]) + 1:
                broken.append(token)
            # The first part of a row may continue a document of an earlier row.
            if is_first and token > 0 and int(positions[token]) > int(positions[0]):
                broken.append(token)
        if broken:
            token = broken[0]
            if int(row.start[token]) == token:
                cause = f"a document begins at position {int(positions[token]):,}"
            else:
                cause = f"position {int(positions[token - 1]):,} is followed by "
                cause += f"{int(positions[token]):,} within a document"
            cause = f"{cause}, {row.name(token)}"
            return BatchFault(len(broken), token, cause, "positions_of_documents")
    return None


def check_labels(rows: list[BatchRow], matcher: DocumentMatcher) -> BatchFault | None:
    """Check that each label is the token itself or the next one, of the same document."""
    labelled = [row for row in rows if "labels" in row.batch]
    if not labelled:
        raise NotAskedError("the batches have no labels")
    distance = find_label_distance(labelled)
    for row in labelled:
        labels = row.batch["labels"]
        crossing, wrong = [], []
        for token, label in enumerate(labels.tolist()):
            target = token + distance
            if label == IGNORED:
                continue
            # A model shifts labels that are the tokens themselves.
            source = target - 1
            if source < 0:
                continue
            if target >= len(row.ids) or label != int(row.ids[target]):
                wrong.append(token)
            elif row.document[target] >= 0 and row.start[target] == target:
                crossing.append(token)
        if crossing:
            cause = "the first token of a document is predicted from the document before it"
            return BatchFault(len(crossing), crossing[0], f"{cause}, {row.name(crossing[0])}")
        if wrong:
            cause = f"the label of {row.name(wrong[0])} is neither the token nor the next one"
            return BatchFault(len(wrong), wrong[0], cause)
    return None


def find_label_distance(rows: list[BatchRow]) -> int:
    """Return 0 if labels are the tokens themselves, 1 if they are the next ones, by majority."""
    counts: Counter[int] = Counter()
    for row in rows:
        labels = row.batch["labels"]
        for distance in (0, 1):
            size = len(row.ids) - distance
            counts[distance] += int((labels[:size] == row.ids[distance:]).sum())
    return 1 if counts[1] > counts[0] else 0


def check_padding(rows: list[BatchRow], matcher: DocumentMatcher) -> BatchFault | None:
    """Check that padding is never a label."""
    padded = False
    for row in rows:
        labels = row.batch.get("labels")
        ends = [token for token in range(len(row.ids)) if row.document[token] < 0]
        # One token of no document behind a document separates it from the next one.
        padding = [
            token
            for token in ends
            if token == 0 or row.document[token - 1] < 0 or _is_hidden(row, token)
        ]
        padded = padded or bool(padding)
        if labels is None:
            continue
        distance = find_label_distance([row])
        broken = [
            token
            for token in padding
            if token - distance >= 0 and int(labels[token - distance]) != IGNORED
        ]
        if broken:
            return BatchFault(len(broken), broken[0], f"{row.name(broken[0])} is padding")
    if not padded:
        raise NotAskedError("no row has padding")
    return None


def _is_hidden(row: BatchRow, token: int) -> bool:
    mask = row.batch.get("attention_mask")
    return mask is not None and mask.dim() == 1 and not bool(mask[token])


def read_texts(row: BatchRow) -> dict[str, Tensor]:
    """Return the text of each token [N] by what separates texts: {name of the field: texts}."""
    count = len(row.ids)
    texts = {}
    for name in LENGTHS:
        if name in row.batch:
            ends = row.batch[name].flatten()
            texts[name] = torch.searchsorted(ends, torch.arange(count), right=True)
    for name in DOCUMENTS:
        if name in row.batch and row.batch[name].shape[-1] == count:
            texts[name] = row.batch[name].reshape(-1, count)[0]
    if "position_ids" in row.batch:
        positions = row.batch["position_ids"].reshape(-1, count)[0]
        begins = torch.ones(count, dtype=torch.bool)
        begins[1:] = positions[1:] != positions[:-1] + 1
        texts["position_ids"] = begins.cumsum(0)
    return texts


def check_masks(rows: list[BatchRow], matcher: DocumentMatcher) -> BatchFault | None:
    """Check that masks, numbers of texts and cumulative lengths begin where documents begin."""
    is_asked = False
    for row in rows:
        for name, texts in read_texts(row).items():
            if name == "position_ids":
                continue
            is_asked = True
            tokens = torch.arange(1, len(row.ids))
            inside = (row.document[1:] >= 0) & (row.document[:-1] >= 0)
            begins = row.start[1:] == tokens
            broken = (inside & (begins != (texts[1:] != texts[:-1]))).nonzero().flatten() + 1
            if len(broken):
                token = int(broken[0])
                what = "begins no document" if begins[token - 1] == 0 else "begins a document"
                cause = f"{row.name(token)} {what}, and {name} says otherwise"
                return BatchFault(len(broken), token, cause, "mask_of_documents")
        mask = row.batch.get("attention_mask")
        if mask is not None and mask.dim() == 1:
            is_asked = True
            hidden = (row.document >= 0) & (mask == 0)
            if bool(hidden.any()):
                token = int(hidden.nonzero()[0])
                cause = f"{row.name(token)} is of a document, and attention_mask hides it"
                return BatchFault(int(hidden.sum()), token, cause, "mask_of_documents")
            seen = (row.document < 0) & (mask != 0) & _follows_padding(row)
            if bool(seen.any()):
                token = int(seen.nonzero()[0])
                cause = f"{row.name(token)} is padding, and attention_mask shows it"
                return BatchFault(int(seen.sum()), token, cause, "mask_of_padding")
    if not is_asked:
        raise NotAskedError("the batches have neither masks nor cumulative lengths")
    return None


def _follows_padding(row: BatchRow) -> Tensor:
    """Return which tokens [N] follow a token of no document."""
    after = torch.zeros(len(row.ids), dtype=torch.bool)
    after[1:] = row.document[:-1] < 0
    return after


def check_visible(rows: list[BatchRow], matcher: DocumentMatcher) -> BatchFault | None:
    """Check that a token sees none of another document, as models of transformers read a batch.

    They follow a mask of four axes, else cumulative lengths or numbers of texts, else restarting
    positions if there is no mask.
    """
    for row in rows:
        documents = row.document
        if len(documents[documents >= 0].unique()) < 2:
            continue
        count = len(row.ids)
        causal = torch.ones(count, count, dtype=torch.bool).tril()
        mask = row.batch.get("attention_mask")
        texts = read_texts(row)
        restarts = texts.pop("position_ids", None)
        if mask is not None and mask.dim() > 1:
            square = mask.reshape(-1, count, count)[0]
            # Added masks are 0 for visible tokens.
            seen = square > -1 if square.is_floating_point() else square != 0
            cause = "attention_mask shows it"
        elif texts:
            name, numbers = next(iter(texts.items()))
            seen = causal & (numbers[:, None] == numbers)
            cause = f"{name} has both in one text"
        elif restarts is not None and mask is None:
            seen = causal & (restarts[:, None] == restarts)
            cause = "positions do not restart between them"
        elif restarts is not None:
            seen, cause = causal, "restarting positions are not read where a mask of ones is given"
        else:
            seen, cause = causal, "nothing in the batch separates them"
        other = (documents[:, None] >= 0) & (documents >= 0) & (documents[:, None] != documents)
        leaks = seen & other
        if bool(leaks.any()):
            token, earlier = (int(one) for one in leaks.nonzero()[0])
            sentence = f"{row.name(token)} sees token {earlier} of another document: {cause}"
            return BatchFault(int(leaks.any(1).sum()), token, sentence, "mask_of_documents")
    return None


BatchCheck = Callable[[list[BatchRow], DocumentMatcher], BatchFault | None]
BATCH_LAWS: Mapping[str, tuple[str, BatchCheck]] = {
    "tokens": ("every token of the documents occurs once, in order", check_tokens),
    "positions": ("positions restart where a document begins", check_positions),
    "labels": ("no label crosses into another document", check_labels),
    "padding": ("padding is never a label", check_padding),
    "masks": ("masks and cumulative lengths agree with the documents", check_masks),
    "visible": ("a token sees none of another document", check_visible),
}
"""{law: (statement, check)}"""


def ask_batches(
    batches: Iterable[Any], documents: Sequence[Sequence[int]]
) -> tuple[LawResult, ...]:
    """Ask batches all laws.

    Args:
        batches: Mappings with `input_ids` and what else the model receives.
        documents: Token ids of the documents that they were made of.

    Raises:
        OptionError: A batch has no token ids.
    """
    rows, matcher = read_rows(batches, documents)
    results = []
    for law, (statement, check) in BATCH_LAWS.items():
        try:
            fault = check(rows, matcher)
        except NotAskedError as reason:
            results.append(
                LawResult(law=law, statement=statement, status="not asked", reason=str(reason))
            )
            continue
        results.append(
            LawResult(
                law=law,
                statement=statement,
                status="kept" if fault is None else "broken",
                error=0.0 if fault is None else float(fault.count),
                bound=0.0,
                since=None if fault is None else fault.since,
                cause=None if fault is None else fault.cause,
                explanation=None if fault is None else fault.explanation,
            )
        )
    return tuple(results)
