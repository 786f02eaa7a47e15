"""Tokenizers of a vocabulary as transformers reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.data.corpus.tokenizer import TokenCount
from zoo.data.spec import Vocabulary
from zoo.errors import ConfigIssue, RecipeError
from zoo.packages import explain_imports
from zoo.utils import write_json

log = logging.getLogger("zoo")

MASK_TOKENS = ("[MASK]", "<mask>", "<|mask|>")
PAD_TOKENS = ("[PAD]", "<pad>")
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


def write_tokenizer(
    vocabulary: Vocabulary, folder: Path, mask: int | None, extend: bool = True
) -> None:
    """Write tokenizer.json and its configuration for `PreTrainedTokenizerFast`.

    A token that ends or pads and is not in the vocabulary gets the number after it. The model never
    predicts it, and padding is masked. A vocabulary that is only a size has no files.

    Args:
        vocabulary: The vocabulary of the model.
        folder: The folder.
        mask: The number of the mask token, if the model has one.
        extend: Add tokens that end and pad to a vocabulary without them.

    Raises:
        RecipeError: The vocabulary has numbers without a token.
    """
    if isinstance(vocabulary, TokenCount):
        log.info("the model has no tokenizer, so none is written; it reads only token ids")
        return
    tokenizer = build_tokenizer(vocabulary)
    special: dict[str, str] = {}

    def add(kind: str, candidates: Sequence[str], number: int | None = None) -> None:
        # a vocabulary may have such a token already; no second one is added then
        present = [
            candidate for candidate in candidates if tokenizer.token_to_id(candidate) is not None
        ]
        if present and number is None:
            special[f"{kind}_token"] = present[0]
            return
        if not extend:
            return
        content = next(candidate for candidate in candidates if candidate not in present)
        tokenizer.add_special_tokens([content])
        special[f"{kind}_token"] = content
        if number is not None and tokenizer.token_to_id(content) != number:
            message = f"the vocabulary ends before {number}: some numbers have no token"
            raise RecipeError(ConfigIssue("tokenizer", "", message))

    if mask is not None:
        add("mask", MASK_TOKENS, mask)
        add("pad", PAD_TOKENS)
    else:
        add("eos", END_TOKENS)
        add("pad", (*PAD_TOKENS, *special.values()))
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        # a decoder goes on from the last position, which must not be padding
        "padding_side": "right" if mask is not None else "left",
        **special,
    }
    write_json(settings, folder / "tokenizer_config.json")


def build_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer of the library tokenizers with the numbers of a vocabulary."""
    with explain_imports():
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    data = vocabulary.to_dict()
    if data["kind"] == "subword":
        settings = json.loads(data["json"])
        settings |= {"truncation": None, "padding": None}
        post = settings.get("post_processor") or {}
        if post.get("type") != "ByteLevel":
            settings["post_processor"] = None  # zoo adds no special tokens
        return Tokenizer.from_str(json.dumps(settings))

    if data["kind"] == "byte":
        # the library writes bytes as printable characters
        symbols = _list_byte_symbols()
        tokenizer = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(symbols)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    is_words = data["kind"] == "word"
    pieces = data["words"].split() if is_words else list(data["symbols"])
    tokenizer = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate(pieces)}))
    if is_words:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _list_byte_symbols() -> list[str]:
    """Return the character that stands for each byte in byte-level vocabularies (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    symbols |= {byte: chr(256 + at) for at, byte in enumerate(unprintable)}
    return [symbols[byte] for byte in range(256)]
