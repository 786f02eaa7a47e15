"""Products of a few states with large weights, taken in parts, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import zoo
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Projection, project

WIDE = 256  # weights [WIDE, WIDE] and larger are large


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def operations(x: Tensor, module: nn.Module) -> set[str]:
    """The products that a call is made of."""
    with FlopCounterMode(display=False) as counter:
        module(x)
    return {str(operation).split(".")[-1] for operation in counter.flop_counts["Global"]}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [WIDE, 2 * WIDE, WIDE + 2, WIDE + 1])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 3), (4, 1), (2, 3), (0, 1)])
def test_products(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    module, x = Projection(2 * WIDE, outputs, bias=bias), torch.randn(*shape, 2 * WIDE)
    expected = x.double() @ module.weight.double().T + (module.bias.double() if bias else 0)
    with torch.no_grad():
        given = module(x)
    assert given.shape == (*shape, outputs)
    torch.testing.assert_close(given.double(), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("threads")
@pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="without MKL the whole product is taken"
)
def test_what_is_taken_in_parts() -> None:
    module, x = Projection(WIDE, WIDE), torch.randn(1, 1, WIDE)
    with torch.inference_mode():
        assert operations(x, module) == {"baddbmm"}
        assert operations(x, Projection(WIDE, WIDE, bias=False)) == {"bmm"}
        assert operations(torch.randn(1, 8, WIDE), module) == {"addmm"}
        assert operations(x, Projection(WIDE, WIDE + 1)) == {"addmm"}
        assert operations(x.double(), Projection(WIDE, WIDE).double()) == {"addmm"}
        assert operations(x[..., :8], Projection(8, 8)) == {"addmm"}
    assert operations(x, module) == {"addmm"}  # with gradients


@pytest.mark.usefixtures("threads")
@torch.no_grad()
def test_a_layer_of_large_weights_gives_token_by_token_what_one_pass_gives() -> None:
    layer, cache, x = (
        zoo.Attention(zoo.Dims(WIDE, 4), "rope", causal=True),
        KeyValueCache(),
        torch.randn(1, 6, WIDE),
    )
    steps = torch.cat([layer(one, context=cache) for one in x.split(1, dim=1)], dim=1)
    torch.testing.assert_close(steps, layer(x))


def test_autocast_rounds_as_it_does_any_linear_map() -> None:
    module, x = Projection(WIDE, WIDE), torch.randn(1, 1, WIDE)
    plain = nn.Linear(WIDE, WIDE)
    plain.load_state_dict(module.state_dict())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype is torch.bfloat16
        torch.testing.assert_close(module(x), plain(x), rtol=0, atol=0)


def test_a_view_of_a_table_is_a_weight_too() -> None:
    table = nn.Embedding(2 * WIDE, WIDE)
    x = torch.randn(1, 1, WIDE)
    with torch.no_grad():
        given = project(x, table.weight[:WIDE])
    torch.testing.assert_close(
        given.double(), x.double() @ table.weight[:WIDE].double().T, rtol=1e-5, atol=1e-5
    )


def test_gradients_go_through() -> None:
    module, x = Projection(WIDE, WIDE), torch.randn(1, 1, WIDE, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert module.weight.grad is not None
    torch.testing.assert_close(x.grad[0, 0], module.weight.detach().sum(0), rtol=1e-5, atol=1e-5)
