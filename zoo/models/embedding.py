"""Token embeddings and the output head of language models, with their initial weights."""

from __future__ import annotations

from collections import Counter
from typing import Self, Unpack

from torch import Tensor, nn

from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.layer import Projection, project
from zoo.attention.soft_cap import apply_soft_cap
from zoo.attention.temperature import Temperature
from zoo.data.spec import Vocabulary
from zoo.models.transformer import Block, Transformer, TransformerOptions
from zoo.options import Count

INIT_STD = 0.02


class TokenEmbedding(nn.Embedding):
    """A table with a row per token, followed by `extra_rows` that are never predicted.

    With `scale` the output is multiplied by sqrt(dim) and the table starts as N(0, 1 / dim), so
    that tokens are as large as the sinusoids added to them (Vaswani et al. 2017). Otherwise the
    table starts as N(0, 0.02^2).
    """

    def __init__(
        self, vocabulary: Vocabulary, dim: int, *, scale: bool, extra_rows: int = 0
    ) -> None:
        super().__init__(len(vocabulary) + extra_rows, dim)
        self.vocabulary, self.extra_rows = vocabulary, extra_rows
        self.scale = dim**0.5 if scale else 1.0
        nn.init.normal_(self.weight, std=dim**-0.5 if scale else INIT_STD)

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed token numbers, int64 [B, N] -> [B, N, D]."""
        return super().forward(inputs) * self.scale

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Keep the learned rows of all tokens that both vocabularies have."""
        if source.extra_rows == self.extra_rows and _is_same(self.vocabulary, source.vocabulary):
            return value
        return _match_rows(self.weight, self.vocabulary, value, source.vocabulary)


class LMHead(Projection):
    """The projection to logits of a vocabulary, for models without tied embeddings."""

    def __init__(self, dim: int, vocabulary: Vocabulary) -> None:
        super().__init__(dim, len(vocabulary), bias=False)
        self.vocabulary = vocabulary
        nn.init.normal_(self.weight, std=INIT_STD)

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Keep the learned rows of all tokens that both vocabularies have."""
        if _is_same(self.vocabulary, source.vocabulary):
            return value
        return _match_rows(self.weight, self.vocabulary, value, source.vocabulary)


class LanguageOptions(TransformerOptions, total=False):
    """Options of every model of texts, which a model hands to `LanguageModel`."""

    position_augmentation: PositionAugmentation
    tie_embeddings: bool
    scale_embeddings: bool
    window: Count | None
    temperature: Temperature | None


class LanguageModel(Transformer):
    """A transformer that reads and predicts tokens.

    Args:
        vocabulary: The tokens.
        position_augmentation: Random changes of positions in training.
        tie_embeddings: Predict with the embedding table (arXiv:1608.05859).
        scale_embeddings: Multiply embeddings by sqrt(dim).
        window: Number of tokens in the sliding window of attention. None: no window.
        temperature: Factors of queries that grow with the position (Llama 4). None: no factors.
        logit_softcap: Bound c of the logits z, which become c tanh(z / c) (Gemma 2,
            arXiv:2408.00118). None: no bound.
        extra_rows: Number of rows of the table after those of the vocabulary, which are never
            predicted.
        **options: Those of `Transformer`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        position_augmentation: PositionAugmentation = PositionAugmentation(),
        tie_embeddings: bool = True,
        scale_embeddings: bool = False,
        window: Count | None = None,
        temperature: Temperature | None = None,
        logit_softcap: float | None = None,
        extra_rows: int = 0,
        **options: Unpack[TransformerOptions],
    ) -> None:
        super().__init__(**options)
        self.position_augmentation = position_augmentation
        self.window, self.temperature = window, temperature
        self.logit_softcap = logit_softcap
        dim = options["dim"]
        self.vocabulary_size = len(vocabulary)
        self.embed_tokens = TokenEmbedding(
            vocabulary, dim, scale=scale_embeddings, extra_rows=extra_rows
        )
        self.lm_head = None if tie_embeddings else LMHead(dim, vocabulary)

    def logits(self, x: Tensor) -> Tensor:
        """Predict tokens from states, [B, N, D] -> [B, N, vocabulary size]."""
        if self.lm_head is not None:
            logits = self.lm_head(x)
        else:
            logits = project(x, self.embed_tokens.weight[: self.vocabulary_size])
        if self.logit_softcap is None:
            return logits
        return apply_soft_cap(logits, self.logit_softcap)


def init_weights(model: Transformer) -> None:
    """Initialize the linear layers of the blocks as in GPT-2: weights N(0, 0.02^2), biases 0.

    In layers that end a residual branch, weights are smaller by the square root of the number of
    branches (Radford et al. 2019).
    """
    # Every block adds two branches to the residual stream: attention and the MLP.
    branches = 2 * len(model.blocks)
    for block in model.blocks:
        assert isinstance(block, Block)
        ends = (find_output_projection(block), block.mlp.down_proj)
        for module in block.modules():
            if not isinstance(module, nn.Linear):
                continue
            std = INIT_STD * branches**-0.5 if module in ends else INIT_STD
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def find_output_projection(block: Block) -> nn.Module:
    """Return the linear layer that ends the first residual branch of a block."""
    if block.mixer is not None:
        return block.mixer.output_projection
    assert block.attn is not None
    return block.attn.o_proj


def _is_same(left: Vocabulary, right: Vocabulary) -> bool:
    return left.to_dict() == right.to_dict()


def _match_rows(
    weight: Tensor, here: Vocabulary, value: Tensor, there: Vocabulary
) -> Tensor | None:
    """Return `weight` with the learned rows of tokens in both vocabularies; None if none are."""
    tokens, sources = _unique_pieces(here), _unique_pieces(there)
    shared = tokens.keys() & sources.keys()
    if not shared or value.shape[1] != weight.shape[1]:
        return None
    # rows of all other tokens keep their initial values
    result = weight.detach().clone()
    for piece in shared:
        result[tokens[piece]] = value[sources[piece]]
    return result


def _unique_pieces(vocabulary: Vocabulary) -> dict[str, int]:
    """Map each piece of text to its token, for pieces that exactly one token decodes to."""
    # Parts of a multi-byte character decode to the replacement character and cannot be matched.
    pieces = [vocabulary.decode([token]) for token in range(len(vocabulary))]
    counts = Counter(pieces)
    return {
        piece: token
        for token, piece in enumerate(pieces)
        if counts[piece] == 1 and "\ufffd" not in piece
    }
