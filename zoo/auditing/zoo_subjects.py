"""The subject of an audit for language models that zoo trains."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.attention.kv_cache import KeyValueCache
from zoo.auditing.subject import AuditSubject, Logits, NotAskedError
from zoo.integrations.evaluating import evaluating
from zoo.models.decoder import Decoder
from zoo.models.embedding import LanguageModel


def find_language_model(model: nn.Module) -> LanguageModel | None:
    """Return zoo's language model in a module: itself, or that of a task; None without one."""
    inner = model if isinstance(model, LanguageModel) else getattr(model, "model", None)
    return inner if isinstance(inner, LanguageModel) else None


def make_language_subject(model: LanguageModel) -> AuditSubject:
    """Return the subject for a decoder or an encoder of zoo.

    It is asked as functions: laws about configurations of transformers do not apply to it.
    """
    is_causal = isinstance(model, Decoder)

    @torch.no_grad()
    def compute_logits(
        ids: Tensor,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        options: dict[str, Tensor] = {}
        if positions is not None and is_causal:
            options["index"] = positions
        given = _read_documents(attention_mask, documents)
        if given is not None:
            options["documents"] = given
        with evaluating(model):
            logits: Tensor = model(ids, **options)
        if logits.dim() != 3:
            raise NotAskedError("the model predicts no tokens")
        return logits

    @torch.no_grad()
    def compute_cached(
        ids: Tensor,
        cache: Any = None,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        context = KeyValueCache() if cache is None else cache
        options: dict[str, Tensor] = {}
        if attention_mask is not None:
            # A mask has the tokens of earlier calls, too.
            counted = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            positions = counted if positions is None else positions
            options["documents"] = attention_mask[:, -ids.shape[1] :].long() - 1
        if positions is not None:
            options["index"] = positions
        with evaluating(model):
            logits: Tensor = model(ids, context=context, **options)
        return logits, context

    options = {"attention_mask", "documents"} | ({"positions"} if is_causal else set())
    return AuditSubject(
        logits=cast(Logits, compute_logits),
        cached=compute_cached if is_causal else None,
        vocab_size=len(model.embed_tokens.vocabulary),
        is_causal=is_causal,
        name=type(model).__name__,
        options=frozenset(options),
    )


def _read_documents(mask: Tensor | None, documents: Tensor | None) -> Tensor | None:
    """Return numbers of documents, with -1 for padding.

    Raises:
        NotAskedError: The mask has four axes.
    """
    if mask is None:
        return documents
    if mask.dim() != 2:
        raise NotAskedError("models of zoo take numbers of documents, and no mask of pairs")
    return mask.long() - 1
