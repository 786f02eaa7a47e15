"""The page of conformance: what `zoo check all` recorded in docs/conformance/*.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zoo.laws.certificate import PLACES, Certificate
from zoo.laws.report import figures, matrix, rounded

HEAD = """# Conformance

Whatever an encoding is, some things hold of every one of them: no query sees the future, decoding with a cache gives what one
pass gives, a compiler captures it, its gradients are true. These are *laws*. `zoo check` puts any encoding through those that
its declared facts select, one of a plug-in of your own too, and writes down what it measured:

    zoo check rope                                   a certificate: facts, laws, errors and their bounds
    zoo check liere block=4 axes=2                   with options of its own, on two axes
    zoo check kerple+dape laws=[decoding_equals_one_pass]
    zoo check gaussian --plugin zoo_example          of a package beside you
    zoo check all to=certificates                    all there are, a file for each

It ends with exit code 1 where a law is broken, and says which, what was seen and what would be right. Most laws look at two
attention layers with residuals, in float64, with twelve random tokens and parameters that are nowhere zero; what is
compiled is one layer. They cannot tell a wrong formula that obeys them: for that each encoding has its literal reference in
the tests. Nor do they ask that places are read at all where slots may take their part, as of fox, cope and stick-breaking.

"""
ERRORS = """## What was measured

The largest error of each, relative to 1 + |expected|, on all axes that an encoding takes. In float64 the same numbers in
another order differ by 1e-16 or a little more; the bound is 1e-9, and 1e-7 of gradients.

- *shift*: the output where all tokens are shifted by 2.5, and by thousands, of what is declared relative.
- *future*: the output of tokens before others that were changed. *decoding*: of tokens that come one by one and in parts,
  with a cache, against one pass.
- *sdpa*, *chunks*, *flex*: the output against the definition, and gradients too but of flex. Empty where an interpreter
  refuses what needs whole rows of scores.
- *compiled*: output and gradients of the one graph that was captured. *gradient*: against differences of the output.

"""
FAR = """## Far from the start

The largest error of a score against float64, relative to 1 + |score|. Half of twelve tokens stand at the start, half at the
place that the table is for, so that pairs are near or that far apart. Queries and keys are what the encoding makes of the
states themselves, which are rounded to the dtype of the column for float64 too, so that what is left is the encoding's own.
Weights are float32, as under autocast, or rounded like the rest (*weights too*). Places are coordinates as the encoding takes
them, also where its own convention would keep them small; of several numbers of axes the worst is told. A star: refused, as
places beyond a table are, or past what a half can hold, which in float32 is a fault.

Where wave vectors are learned (`rope_mixed`, `string`, `liere`, `comrope_ap`, `comrope_ld`, `grape_m`), rounding them turns far
tokens by other angles altogether: such weights are to stay float32, as under autocast.

"""


def conformance(folder: Path) -> str:
    """The page, from the certificates of a folder."""
    found = [Certificate.read(path) for path in sorted(folder.glob("*.json"))]
    return HEAD + "\n".join(_parts(found))


def _parts(found: list[Certificate]) -> Iterator[str]:
    made = sorted(
        {f"zoo {one.zoo}, torch {one.torch}, {one.made.partition(' ')[0]}" for one in found}
    )
    commands = ", ".join(f"`{command}`" for command in sorted({one.command for one in found}))
    yield from (
        "## Laws",
        "",
        f"Recorded by {commands} ({'; '.join(made)}).",
        "",
        matrix(found),
        "",
    )
    yield from (ERRORS.rstrip("\n"), "", *figures(found), "", FAR.rstrip("\n"), "")
    for place in PLACES:
        yield from (f"### At place {place:,}", "", *rounded(found, place), "")
