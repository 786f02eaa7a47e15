"""The page about conformance, from the certificates of `zoo verify all` in docs/conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zoo.laws.certificate import POSITIONS, Certificate
from zoo.laws.report import law_table, measurement_table, rounding_table

INTRODUCTION = """# Conformance

Some properties must hold for every encoding: no query sees the future, decoding with a KV cache
equals one pass, gradients are correct, a compiler captures the graph. zoo calls them *laws*.
`zoo verify` checks an encoding against every law that its declared facts select, and writes a
*certificate* with the measured errors. It works for your own encodings too:

```sh
zoo verify rope                                   # facts, laws, errors and their bounds
zoo verify liere block=4 axes=2                   # with options, on two axes
zoo verify kerple+dape 'laws=[decoding_equals_one_pass]'
zoo verify gaussian --plugin zoo_example          # an encoding of a plug-in
zoo verify all to=certificates                    # every encoding, one file each
```

The exit code is 1 if a law is broken; the message says which, what was measured, and what would be
right. Most laws examine two attention layers with residuals in float64, on twelve random tokens,
with all parameters away from zero; laws about compilation use one layer, and that about
`torch.export` compares sizes other than the exported one. Laws cannot detect a wrong
formula that obeys them: for that, the tests compare each encoding with a literal reference. Nor do
they require that positions have an effect where token order may replace them, as in fox, cope and
stick-breaking.

"""
ERRORS = """## Measured errors

The largest error of each kind, relative to 1 + |expected|, over all numbers of axes that an
encoding accepts. In float64, reordering a sum changes results by about 1e-16; the bound is 1e-9,
and 1e-7 for gradients.

- *shift*: the output after all tokens shift by 2.5, and by thousands, for encodings declared
  shift-invariant.
- *future*: the output of tokens when later ones change. *decoding*: tokens one by one and in chunks
  with a cache, against one pass.
- *sdpa*, *chunks*, *flex*: output and gradients (not for flex) against the reference backend. Empty
  if the backend cannot compute transforms of whole rows.
- *compiled*: output and gradients of the captured graph. *gradient*: against finite differences.

"""
FAR = """## Precision at large positions

The largest error of a score against float64, relative to 1 + |score|. Half of twelve tokens are at
the start and half at the given position, so pairs are near or that far apart. Queries and keys come
from states rounded to the column's dtype, also in the float64 reference, so the error is the
encoding's own. Weights are float32, as under autocast, or rounded too (*weights too*). Positions
are coordinates as the encoding receives them, even if its convention would keep them small; with
several axes, the worst is shown. A star means refused: positions past a learned table, or past the
range of float16. These errors are those of zoo 0.3.0, whose angles in float32 are exact: they are
computed in float64, or from split products where a device has no float64, and reduced to one turn.
liere is the exception: its coordinates are between 0 and 1, and the law about far tokens exempts
it. In grape_a, which sums products of positions and slopes, only tokens near the last one are
exact.

Encodings with learned wave vectors (`rope_mixed`, `string`, `liere`, `comrope_ap`, `comrope_ld`,
`grape_m`) rotate far tokens by wrong angles if the wave vectors are rounded: keep these weights in
float32, as autocast does.

"""


def write_conformance_page(folder: Path) -> str:
    """Return the page for the certificates of a folder."""
    certificates = [Certificate.read(path) for path in sorted(folder.glob("*.json"))]
    return INTRODUCTION + "\n".join(_recorded_parts(certificates))


def _recorded_parts(certificates: list[Certificate]) -> Iterator[str]:
    made = {
        f"zoo {one.zoo}, torch {one.torch}, {one.created.partition(' ')[0]}" for one in certificates
    }
    commands = sorted({f"`{one.command}`" for one in certificates})
    recorded = f"Recorded by {', '.join(commands)} ({'; '.join(sorted(made))})."
    added = sorted({f"`{one.added_by}`" for one in certificates if one.added_by})
    if added:
        recorded += f" Later laws were added by {', '.join(added)}."

    yield from ("## Laws", "", recorded, "", law_table(certificates), "")
    yield from (ERRORS.rstrip("\n"), "", *measurement_table(certificates), "", FAR.rstrip("\n"), "")
    for position in POSITIONS:
        yield from (f"### Position {position:,}", "", *rounding_table(certificates, position), "")
