"""Greedy decoding with a cache: tokens per second, beside x-transformers where it is installed, and how the context tells.

    python tests/benchmarks/decoding.py [rounds] [tokens] [encoding ...]
    python tests/benchmarks/decoding.py equipped|equipped-wide [rounds] [encoding ...]

A decoder of D 512, H 8, 6 layers and 256 words, rope unless told otherwise (a+b lists two), batch 1, float32, two threads;
`tokens` after a prompt of 512. Rounds are interleaved, so that a machine that changes its pace changes it for all: ratios
are medians over rounds, and the prompt's own pass is in them. Milliseconds per token at a context are those of the
quickest round, since nothing is quicker by chance.

`equipped`: a Llama of transformers with the sizes of a layer of SmolLM2-135M (8 layers, one thread), as it is and with an
encoding of zoo in place of its own, in turn, on the same weights: processor time of a decoding step after 64 tokens, and of
a pass over 128 tokens. Ratios are medians over rounds, whose order alternates. `equipped-wide`: the same for 6 layers of
the width of a Llama of a billion parameters.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

import zoo
from zoo.attention.kv_cache import KeyValueCache
from zoo.data.corpus.tokenizer import Bytes
from zoo.data.spec import TextSpec
from zoo.models.decoder import Decoder
from zoo.models.generation import sample_tokens

DIM, HEADS, DEPTH, LENGTH, PROMPT = 512, 8, 6, 1024, 512
CONTEXTS = (256, 4096)
PART = 512  # tokens of a long prompt that are read at once
STEPS = 8  # tokens of a round at each context
PASSES = 3  # passes of a round over a whole text

Run = Callable[[int], object]


def decoder(names: list[str]) -> Decoder:
    links = {name: lambda dims, name=name: zoo.encoding(name, dims) for name in names}
    return Decoder(
        TextSpec(LENGTH, Bytes()), dim=DIM, depth=DEPTH, heads=HEADS, encoding=links
    ).eval()


def ours(model: Decoder, prompt: torch.Tensor) -> Run:
    """What generates so many tokens."""
    given = prompt[0].tolist()
    return lambda count: list(
        islice(
            sample_tokens(model, given, KeyValueCache(), torch.Generator(), temperature=0), count
        )
    )


def theirs(prompt: torch.Tensor) -> Run | None:
    """The same of x-transformers, with its cache, rotations and fused attention; None where it is not installed."""
    if importlib.util.find_spec("x_transformers") is None:
        return None
    from x_transformers import AutoregressiveWrapper, TransformerWrapper
    from x_transformers import Decoder as Layers

    layers = Layers(
        dim=DIM,
        depth=DEPTH,
        heads=HEADS,
        attn_dim_head=DIM // HEADS,
        rotary_pos_emb=True,
        attn_flash=True,
    )
    model = AutoregressiveWrapper(
        TransformerWrapper(num_tokens=256, max_seq_len=4 * LENGTH, attn_layers=layers)
    ).eval()
    return lambda count: model.generate(prompt, count, temperature=0.0, cache_kv=True)


def seconds(run: Run, tokens: int) -> float:
    """Per token."""
    start = time.perf_counter()
    run(tokens)
    return (time.perf_counter() - start) / tokens


def rates(runs: dict[str, Run], rounds: int, tokens: int) -> dict[str, list[float]]:
    """Tokens per second of each, round by round."""
    for run in runs.values():
        run(4)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(1 / seconds(run, tokens))
    return found


@torch.inference_mode()
def at_contexts(model: Decoder, rounds: int) -> list[float]:
    """Seconds per token after each of CONTEXTS, and `rounds` times STEPS more."""
    caches, token = [KeyValueCache() for _ in CONTEXTS], torch.zeros(1, 1, dtype=torch.long)
    for cache, length in zip(caches, CONTEXTS, strict=True):
        for part in torch.randint(256, (1, length)).split(PART, dim=1):
            model(part, context=cache, last=1)
        model(token, context=cache)

    def steps(count: int, cache: KeyValueCache) -> None:
        for _ in range(count):
            model(token, context=cache)

    found = [
        [seconds(lambda n, one=cache: steps(n, one), STEPS) for cache in caches]
        for _ in range(rounds)
    ]
    return [min(column) for column in zip(*found, strict=True)]


# layers as those of SmolLM2-135M, and as those of a Llama of a billion parameters
EQUIPPED = {
    "equipped": {
        "vocab_size": 8192,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "equipped-wide": {
        "vocab_size": 8192,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


@torch.no_grad()
def time_passes(model: Any, ids: torch.Tensor) -> tuple[float, float]:
    """Seconds of a decoding step after half of the tokens [1, N], and of a pass over all."""
    cache = model(ids[:, : ids.shape[1] // 2], use_cache=True).past_key_values
    marks = []
    for step in range(2 + STEPS):
        if step == 2:
            marks.append(time.process_time())
        model(ids[:, :1], past_key_values=cache, use_cache=True)
    marks.append(time.process_time())
    for _ in range(PASSES):
        model(ids, use_cache=False)
    marks.append(time.process_time())
    return (marks[1] - marks[0]) / STEPS, (marks[2] - marks[1]) / PASSES


def compare_equipped(size: str, rounds: int, encodings: list[str]) -> None:
    """Print how much slower than itself a Llama is with encodings of zoo."""
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**EQUIPPED[size])).eval()
    ids = torch.randint(1000, (1, 128))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ["", *encodings]}
    for number in range(rounds):
        for name in [*found][:: 1 if number % 2 else -1]:
            if name:
                zoo.equip(model, name)
            found[name].append(time_passes(model, ids))
            if name:
                zoo.unequip(model)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {rounds} rounds")
    for name in encodings:
        pairs = [*zip(found[name], found[""], strict=True)]
        step, full = (statistics.median(a[kind] / b[kind] for a, b in pairs) for kind in (0, 1))
        print(f"{name:20s} {step:5.3f} times the own decoding step, {full:5.3f} times the own pass")


def main(rounds: int, tokens: int, encodings: list[str]) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    prompt = torch.randint(256, (1, PROMPT))
    models = {name: decoder(name.split("+")) for name in encodings}
    runs, peer = {name: ours(model, prompt) for name, model in models.items()}, theirs(prompt)
    if peer is not None:
        runs["x-transformers"] = peer
    found = rates(runs, rounds, tokens)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds of {tokens} tokens after {PROMPT}"
    )
    for name, own in found.items():
        ratios = [a / b for a, b in zip(own, found.get("x-transformers", own), strict=True)]
        suffix = (
            f"   {statistics.median(ratios):5.2f} times x-transformers" if peer is not None else ""
        )
        print(f"{name:20s} {statistics.median(own):7.1f} tokens a second{suffix}")
    for name, model in models.items():
        near, far = at_contexts(model, rounds)
        print(
            f"{name:20s} {near * 1e3:7.2f} ms at {CONTEXTS[0]}, {far * 1e3:7.2f} ms at {CONTEXTS[1]}: {far / near:.2f} times"
        )


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    if equipped := next(iter({*sys.argv[1:2]} & {*EQUIPPED}), None):
        parser.add_argument("kind", choices=EQUIPPED)
        parser.add_argument("rounds", nargs="?", type=positive, default=30)
    else:
        parser.add_argument("rounds", nargs="?", type=positive, default=3)
        parser.add_argument("tokens", nargs="?", type=positive, default=256)
    parser.add_argument("encodings", nargs="*", default=["rope"], metavar="encoding")
    known = parser.parse_args()
    if equipped:
        compare_equipped(equipped, known.rounds, known.encodings)
    else:
        main(known.rounds, known.tokens, known.encodings)
