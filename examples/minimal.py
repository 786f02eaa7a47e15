"""Train a small transformer with any positional encoding, in plain PyTorch.

    python examples/minimal.py --encoding rope
    python examples/minimal.py --encoding kerple+dape --steps 500

The model reads 16 random letters and names, at each position, the letter four positions back. On a
grid 4 wide, which encodings of images get, this is the letter one row up.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import zoo

LETTERS = 8
WIDTH = 4
LENGTH = WIDTH * WIDTH
DIM = 64
HEADS = 4


class Block(nn.Module):
    """A pre-norm transformer block; all that concerns positions is inside `zoo.Attention`."""

    def __init__(self, dims: zoo.Dims, encoding: list[str], causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attn = zoo.Attention(dims, encoding, causal=causal)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))  # [B, N, D]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Letters [B, N] to logits [B, N, LETTERS]."""

    def __init__(self, encoding: list[str], axes: int, depth: int = 2) -> None:
        super().__init__()
        length = (LENGTH,) if axes == 1 else (WIDTH, WIDTH)
        dims = [
            zoo.Dims(dim=DIM, heads=HEADS, axes=axes, length=length, layer=layer, depth=depth)
            for layer in range(depth)
        ]
        self.embed_tokens = nn.Embedding(LETTERS, DIM)
        self.blocks = nn.Sequential(*(Block(one, encoding, causal=axes == 1) for one in dims))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed_tokens(letters))))


def choose_axes(encoding: list[str]) -> int:
    """Return 1 (a sequence) if all encodings accept it, else 2 (a grid)."""
    accepted = [zoo.encoding_class(name).axes for name in encoding]
    return 1 if all(1 in axes for axes in accepted) else 2


def make_batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw letters [B, N] and targets [B, N]: the letter WIDTH positions back, else -100."""
    letters = torch.randint(LETTERS, (size, LENGTH), generator=generator)
    targets = torch.full_like(letters, -100)
    targets[:, WIDTH:] = letters[:, :-WIDTH]
    return letters, targets


def measure_accuracy(model: Model, generator: torch.Generator) -> float:
    """Return the share of 256 fresh sequences' letters that the model names."""
    model.eval()
    letters, targets = make_batch(256, generator)
    with torch.no_grad():
        named = model(letters).argmax(-1)
    model.train()

    known = targets != -100
    return (named == targets)[known].float().mean().item()


def main(argv: list[str] | None = None) -> float:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--encoding", default="rope", help="a name, or several: kerple+dape")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    train_data = torch.Generator().manual_seed(args.seed)
    test_data = torch.Generator().manual_seed(args.seed + 1)

    encoding = args.encoding.split("+")
    model = Model(encoding, choose_axes(encoding))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, args.steps + 1):
        letters, targets = make_batch(64, train_data)
        loss = F.cross_entropy(model(letters).transpose(1, 2), targets)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % 50 == 0 or step == args.steps:
            print(f"step {step:4d}  loss {loss.item():.4f}")

    accuracy = measure_accuracy(model, test_data)
    print(f"{args.encoding}: test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    main()
