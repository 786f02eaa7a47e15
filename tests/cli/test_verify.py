"""`zoo verify`: certificates of encodings, of a plug-in's too, and planted faults that turn them red."""

import json
import re
from pathlib import Path
from signal import SIGINT, raise_signal

import pytest
from tiny import ROOT

from zoo.laws import LAWS
from zoo.laws.certificate import Certificate
from zoo.utils import Ticker

SLOW = {"a_compiler_captures_it", "exports_at_any_size"}
QUICK = [law.name for law in LAWS if law.name not in SLOW]
HEAD = """import torch
from torch import nn

from zoo.attention import Dims, Encoding
from zoo.attention.tokens import upcast
from zoo.encodings.liere import LieRE
from zoo.encodings.common.rotation import cos_sin
from zoo.encodings.rope import RoPE
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.registry import register


@register
"""
FAULTY = {
    "leaking": """class Leaking(Encoding):
    def modify(self, call):
        return call.replace(transform_scores=lambda scores, visible, span: scores * scores.mean(-1, keepdim=True))
""",
    "claiming": """class Claiming(LieRE):
    shift_invariant = True
    axes = (2,)
""",
    "touching": """class Touching(Encoding):
    def modify(self, call):
        call.k.mul_(1.1)
        return call
""",
    "halving": """class Halving(RoPE):
    def transform_query(self, q, tokens):
        ladder = self.base ** (-torch.arange(0, self.dims.head_dim, 2, dtype=tokens.pos.dtype)[None] / self.dims.head_dim)
        return self.rotate(q, cos_sin(upcast(tokens.pos[:, None] @ ladder)))

    transform_key = transform_query
""",
    "idle": """class Idle(RoPEMixed):
    def compute_rotation(self, pos):
        return tuple(table.detach() for table in super().compute_rotation(pos))
""",
    "unmade": """class Unmade(Encoding):
    def __init__(self, dims):
        super().__init__(dims)
        self.rate = nn.Parameter(dims.rate)
""",
    "failing": """class Failing(Encoding):
    def modify(self, call):
        return call.add_bias(lambda b, h, i, j: i @ j)
""",
    "raising": """class Raising(Encoding):
    def __init__(self, dims):
        super().__init__(dims)
        if dims.kv_heads:
            raise TypeError("of heads")

    def modify(self, call):
        raise TypeError("of calls")
""",
    "halved": """class Halved(Encoding):
    def transform_query(self, q, tokens):
        if q.dtype == torch.float16:
            raise RuntimeError("no kernel for Half")
        return q
""",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A package of encodings, each with a fault of its own."""
    root = tmp_path_factory.mktemp("plugins")
    folder = root / "faulty_zoo" / "encodings"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    for name, text in FAULTY.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    return root


@pytest.fixture
def find_broken_laws(zoo, faulty, monkeypatch):
    """What `zoo verify` of a faulty encoding says: the laws that are broken, what else is kept, and its message."""
    monkeypatch.syspath_prepend(faulty)

    def check(name, *words, laws=QUICK):
        code, out, printed = zoo(
            "verify", name, f"laws=[{','.join(laws)}]", *words, "--plugin", "faulty_zoo", "--json"
        )
        assert code == 1
        (found,) = json.loads(out)["certificates"]
        return {one["law"] for one in found["findings"] if one["outcome"] == "broken"}, printed

    return check


def test_what_sees_the_future_is_told(find_broken_laws):
    laws, printed = find_broken_laws("leaking")
    assert {
        "future_tokens_change_nothing",
        "a_longer_run_begins_the_same",
        "packed_documents_are_apart",
    } <= laws
    assert "every_parameter_learns" not in laws
    assert "shapes_are_kept" not in laws
    line = r"leaking, on 1 axis: future_tokens_change_nothing: the output of the first \d+ tokens when later ones change"
    assert re.search(rf"{line}: off by \d\.\de[+-]\d\d; at most 1e-09 would be right", printed)
    assert "the law: Under a causal mask, later tokens have no effect on earlier ones." in printed
    assert "Traceback" not in printed


def test_what_is_not_as_relative_as_it_says_is_told(find_broken_laws):
    laws, printed = find_broken_laws("claiming")
    assert laws == {"shifts_change_nothing"}
    assert printed.startswith("zoo: 1 law is broken")
    assert (
        "claiming, on 2 axes: shifts_change_nothing: the output with all tokens shifted by 2.5 along axis"
        in printed
    )


def test_what_touches_cached_keys_is_told(find_broken_laws):
    laws, printed = find_broken_laws("touching")
    assert "decoding_equals_one_pass" in laws
    assert "decoded one by one, against one pass: off by" in printed


def test_angles_in_half_precision_are_told(find_broken_laws):
    laws, printed = find_broken_laws("halving")
    assert laws == {"bfloat16_stays_close", "float32_is_exact_far_away"}
    assert "the output under bfloat16 at position 5000, against float32: off by" in printed


def test_a_parameter_with_no_gradient_is_told(find_broken_laws):
    laws, printed = find_broken_laws("idle", "axes=2")
    assert {"initial_gradients_are_finite", "every_parameter_learns"} <= laws
    assert (
        "idle, on 2 axes: every_parameter_learns: 0.idle.frequencies receives no gradient"
        in printed
    )


def test_an_error_of_the_encoding_breaks_a_law_and_names_its_line(find_broken_laws):
    laws, printed = find_broken_laws("failing", laws=["shapes_are_kept"])
    assert laws == {"shapes_are_kept"}
    assert re.search(r"shapes_are_kept: RuntimeError in failing.py, line 16: ", printed)


@pytest.mark.nightly
def test_whatever_an_encoding_raises_is_told_of_all_laws(zoo, faulty, monkeypatch):
    monkeypatch.syspath_prepend(faulty)
    code, out, printed = zoo("verify", "raising", "none", "--plugin", "faulty_zoo", "--json")
    assert code == 1
    assert "Traceback" not in printed
    raising, none = json.loads(out)["certificates"]
    outcomes = {one["law"]: one["outcome"] for one in raising["findings"]}
    assert [*outcomes] == [law.name for law in LAWS]
    assert (
        outcomes["shared_key_heads_equal_repeated_ones"] == outcomes["shapes_are_kept"] == "broken"
    )
    assert not raising["partial"]
    assert all(
        one["broken"] and one["reason"] == "TypeError: of calls" for one in raising["roundings"]
    )
    assert not any(one["broken"] for one in none["roundings"])
    assert (
        "shared_key_heads_equal_repeated_ones: TypeError in raising.py, line 18: of heads"
        in printed
    )
    assert printed.count("raising: rounding: TypeError: of calls") == 1


def test_half_precision_that_fails_is_no_refusal(zoo, faulty, monkeypatch):
    """All laws are kept, for none of them is in float16."""
    monkeypatch.syspath_prepend(faulty)
    monkeypatch.setattr("zoo.laws.run.LAWS", LAWS[:1])
    code, out, printed = zoo("verify", "halved", "--plugin", "faulty_zoo", "to=found")
    assert code == 1
    assert re.search(r"^\| +100 \| +\d[^X|]+\| +X \| +\d[^X|]+\| +X \| +\d", out, re.MULTILINE)
    assert "halved: rounding: RuntimeError: no kernel for Half" in printed
    assert any(one.broken for one in Certificate.read(Path("found/halved.json")).roundings)


def test_a_law_that_needs_more_axes_is_not_tried(zoo):
    _, out, _ = zoo("verify", "liere", "axes=1", "laws=[shifts_are_seen]")
    assert re.search(
        r"\| shifts_are_seen +\| does not apply \|.*\| not tried: needs 3 axes \|", out
    )


def test_what_cannot_be_made_is_told(zoo, faulty, monkeypatch):
    monkeypatch.syspath_prepend(faulty)
    code, _, printed = zoo("verify", "unmade", "--plugin", "faulty_zoo")
    assert code == 2
    assert (
        "unmade: it cannot be built, AttributeError: 'Dims' object has no attribute 'rate'"
        in printed
    )


def test_an_example_of_a_plug_in_gets_its_certificate(zoo, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "plugin")
    code, out, printed = zoo(
        "verify", "gaussian", "--plugin", "zoo_example", "axes=1", "to=certificates"
    )
    assert code == 0, printed
    assert out.startswith("# gaussian, on 1 axis\n\ngaussian declares\n  modules: one per layer")
    assert re.search(
        r"\| +\d+ \| shifts_change_nothing +\| kept +\| +\d\.\de[+-]\d\d \| at most 1e-09 +\|", out
    )
    assert re.search(
        r"\| shifts_are_seen +\| does not apply \| .* it is declared shift_invariant \|", out
    )
    assert re.search(r"\| 1,000,000 \| +\de-\d\d ", out)
    assert out.endswith(
        f"laws kept {len(LAWS) - 1}, broken 0, not applying 1; {out.rpartition('; ')[2]}"
    )
    kept = Certificate.read(Path("certificates/gaussian.json"))
    assert kept.command == "zoo verify gaussian axes=1 to=certificates --plugin zoo_example"
    assert [one.law for one in kept.findings] == [law.name for law in LAWS]


def test_it_finds_the_same_again(zoo):
    words = (
        "verify",
        "kerple+dape",
        "laws=[gradients_are_slopes,decoding_equals_one_pass]",
        "--json",
    )
    first, again = (json.loads(zoo(*words)[1])["certificates"][0]["findings"] for _ in range(2))
    assert first == again
    assert first[0]["measurement"]["value"] > 0


def test_options_of_the_encoding_and_lists_are_understood(zoo):
    laws = "laws=[shapes_are_kept]"
    assert "liere(block=4), on 2 axes" in zoo("verify", "liere", "block=4", "axes=2", laws)[1]
    assert "# alibi+dape, on 1 axis" in zoo("verify", "dape", laws)[1]
    code, out, _ = zoo("verify", "rope", "{name: liere, block: 4}", laws)
    assert code == 0
    assert re.search(r"\| liere\(block=4\) \|  \+ \|", out)


def test_all_are_in_the_matrix(zoo):
    import zoo as package

    code, out, _ = zoo("verify", "all", "laws=[undeclared_axes_are_refused,shifts_are_seen]")
    assert code == 0
    rows = dict(re.findall(r"^\| ([\w+]+) +\| +([+X.]) \| +[+X.] \|$", out, re.MULTILINE))
    assert len(rows) == len(package.encoding_names())
    assert set(rows.values()) == {"+"}
    assert (
        ". `shifts_are_seen`: Shifting all tokens changes an encoding that is not declared shift-invariant"
        in out
    )
    assert re.search(
        r"^\d+ encodings: laws kept \d+, broken 0, not applying \d+; zoo", out.splitlines()[-1]
    )


def test_a_signal_before_anything_is_seen_is_told(zoo, monkeypatch):
    monkeypatch.setattr(
        Ticker, "__call__", lambda self, text: raise_signal(SIGINT) if text else None
    )
    code, out, printed = zoo("verify", "rope", "laws=[shapes_are_kept]")
    assert (code, out) == (130, "")
    assert "stopped by SIGINT; 0 of 1 encoding checked" in printed


def test_a_signal_leaves_what_is_done(zoo, monkeypatch):
    monkeypatch.setattr(
        Ticker, "__call__", lambda self, text: raise_signal(SIGINT) if "alibi (2" in text else None
    )
    code, out, printed = zoo(
        "verify",
        "none",
        "alibi",
        "rope",
        "laws=[shapes_are_kept,padding_changes_nothing]",
        "to=found",
    )
    assert code == 130
    assert "stopped by SIGINT; 1 of 3 encodings checked, 0 laws are broken so far" in printed
    assert "# none" in out
    assert [path.name for path in Path("found").iterdir()] == ["none.json"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "no encoding; name one, or all"),
        (["rop"], "rop: there is no 'rop' among encodings; did you mean rope?"),
        (
            ["rope", "laws=[shape_is_kept]"],
            "laws: there is no law 'shape_is_kept'; did you mean shapes_are_kept?",
        ),
        (["rope", "laws=shapes_are_kept"], "write ['shapes_are_kept']"),
        (["rope", "axes=2"], "axes: rope does not take [2]; it takes 1"),
        (["rope", "axes=4"], "axes: expected"),
        (["rope", "bas=3"], "bas: unknown key; did you mean base?"),
        (["liere", "block=0"], "liere(block=0): block"),
        (
            ["liere", "coordinates=symmetric"],
            "liere(coordinates=symmetric): coordinates: laws give coordinates to the encoding directly",
        ),
        (["rope", "alibi", "base=3"], "base: unknown key"),
        (["${x}"], "an interpolation has no recipe here to refer to; write the value itself"),
        (['{name: rope, base: "${x}"}'], "an interpolation has no recipe here to refer to"),
        (["rope+rope"], "the list names an encoding twice"),
        (
            ["rope", "to=no/such/folder"],
            "to: no/such/folder cannot be written, No such file or directory",
        ),
    ],
    ids=str,
)
def test_a_mistake_is_told(words, printed, zoo):
    code, out, error = zoo("verify", *words)
    assert (code, out) == (2, "")
    assert printed in error


def test_all_mistakes_are_told_at_once(zoo):
    # names and options, which are known without torch, before the values of options
    answer = zoo("verify", "rop", "fxo", "lawz=[x]")[2]
    assert answer.startswith("zoo: 3 config errors")
    answer = zoo("verify", "rope", "laws=[x,y]", "to=no/such/folder")[2]
    assert answer.startswith("zoo: 2 config errors")


@pytest.mark.parametrize("content", ["{}", '{"zoo": "0.1.0", "made": "2026"}'])
def test_another_file_is_not_replaced(content, zoo):
    Path("rope.json").write_text(content)
    code, _, printed = zoo("verify", "rope", "laws=[shapes_are_kept]", "to=.")
    assert code == 2
    assert "rope.json" in printed
    assert "holds no certificate" in printed
