"""Linear attention (arXiv:2006.16236), with rotations of its features (arXiv:2104.09864)."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.attention import linear_sums
from zoo.attention.call import AttentionCall
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context, HeadLayer, LayerOptions
from zoo.attention.linear_sums import LinearCall
from zoo.attention.mixer import Mixer
from zoo.attention.tokens import Tokens, disable_autocast
from zoo.registry import register


@register
class LinearAttention(HeadLayer, Mixer):
    """o_i = sum_n (R_i phi(q_i)).(R_n phi(k_n)) v_n / sum_n phi(q_i).phi(k_n),   phi = elu + 1

    n are the tokens that i sees: the earlier ones of its document, and in a model without a causal
    mask all of them. R is the rotation of the encoding, of the model or of the type of layers. It
    applies to features and only in the numerator, so that the denominator stays positive (Su et al.
    2021, section 3.3). Encodings that change scores are refused: there are none.

    Projections, norms of heads, output gate and token shift are those of `block`, as in attention.
    The state is two sums over the earlier tokens, of phi(k) v' and of phi(k).

    Args:
        dims: The sizes of the layer.
        block: The options of `block`.
    """

    uses_encodings = True
    causal_only = False
    projects_heads = True
    no_export_reason = "under a causal mask its chunks follow each other in a loop over the text"

    def __init__(self, dims: Dims, block: LayerOptions = LayerOptions()) -> None:
        super().__init__(dims, block)

    @property
    def output_projection(self) -> nn.Module:
        return self.o_proj

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
        """Return the tokens with the outputs [B, N, D] as states.

        Args:
            tokens: Tokens with states [B, N, D].
            chain: The encodings of the layer.
            context: The memory of earlier calls.

        Raises:
            OptionError: An encoding changes scores, or the context holds another number of rows.
        """
        tokens, call = self.describe(tokens, chain, context)
        if self.causal:
            out, state = linear_sums.attend_causal(call, context.state(self.dims.layer))
            context.store_state(self.dims.layer, state, tokens)
        else:
            out = linear_sums.attend_bidirectional(call)
        return tokens.replace(x=self.merge_heads(out, tokens.x))

    def describe(
        self, tokens: Tokens, chain: Chain, context: Context, query_index: Tensor | None = None
    ) -> tuple[Tokens, LinearCall]:
        """Describe the layer as `SelfAttention.describe` does.

        Raises:
            OptionError: An encoding cannot be used with linear attention.
        """
        if tokens.document is not None:
            # What is no number at padding would stay none in sums: 0 times it.
            is_padding = (tokens.document < 0)[..., None]
            tokens = tokens.replace(x=tokens.x.masked_fill(is_padding, 0))
        tokens = chain.prepare(tokens)
        states, raw_query, k, v = self.project_heads(tokens, context)
        queries = tokens
        if query_index is not None:
            raw_query, queries = raw_query[:, :, query_index], tokens.select(query_index)

        # Encodings transform the features, not the projections (RoFormer, section 3.3).
        with disable_autocast(v.device):
            raw_query, features = linear_sums.feature_map(raw_query), linear_sums.feature_map(k)
            q, k = chain.transform_query(raw_query, queries), chain.transform_key(features, states)
        call = AttentionCall(
            q, k, v, raw_query, queries, states, self.causal, scale=1.0, query_index=query_index
        )
        linear_sums.check_supported(chain, call)
        return tokens, LinearCall(call, features)

    def plan(self, tokens: Tokens, chain: Chain, device: str) -> tuple[str, str]:
        """Return the name and how sums are made; refuse what `describe` refuses."""
        self.describe(tokens, chain, Context())
        how = (
            f"sums over keys, in chunks of {linear_sums.CHUNK}" if self.causal else "sums over keys"
        )
        return self.name, how
