"""What grows in place: nothing that was written is written again, and every fork has its own end."""

import torch

from zoo.attention.kv_cache import GrowingTensor


def rows(first, count, batch=1):
    return torch.arange(first, first + count).float().expand(batch, -1)[..., None].clone()


def grow(count=6):
    run = GrowingTensor.of(rows(0, 1), 1)
    with torch.no_grad():
        for at in range(1, count):
            run = run.append(rows(at, 1))
    return run


def test_rows_stand_in_the_order_they_came():
    assert grow().rows.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert len(grow()) == 6


@torch.no_grad()
def test_room_is_made_as_often_as_its_size_doubles():
    run, rooms = GrowingTensor.of(rows(0, 1), 1), set()
    for at in range(1, 1000):
        run = run.append(rows(at, 1))
        rooms.add(run.buffer.tensor.data_ptr())
    assert len(rooms) <= 10
    assert run.buffer.tensor.shape[1] < 2 * 1024


@torch.no_grad()
def test_there_is_no_more_room_than_for_twice_what_a_window_keeps():
    run = GrowingTensor.of(rows(0, 100), 1).last(3)
    for at in range(100, 200):
        run = run.append(rows(at, 1)).last(3)
        assert run.buffer.tensor.shape[1] <= 8
    assert run.rows.flatten().tolist() == [197, 198, 199]
    assert run.last(9).rows.flatten().tolist() == [197, 198, 199]


@torch.no_grad()
def test_forks_do_not_see_each_other():
    run = grow()
    one, other = run.append(rows(70, 1)), run.append(rows(80, 2))
    assert one.buffer is run.buffer
    assert one.append(rows(71, 1)).rows.flatten().tolist() == [0, 1, 2, 3, 4, 5, 70, 71]
    assert other.rows.flatten().tolist() == [0, 1, 2, 3, 4, 5, 80, 81]
    assert run.rows.flatten().tolist() == [0, 1, 2, 3, 4, 5]


@torch.no_grad()
def test_what_was_given_is_not_written_to():
    given = rows(0, 8)
    shorter = GrowingTensor.of(given, 1).last(8)
    GrowingTensor.of(given[:, :4], 1).append(rows(9, 1))
    assert torch.equal(given, rows(0, 8))
    assert torch.equal(shorter.rows, given)


@torch.no_grad()
def test_a_batch_and_a_dtype_widen():
    run = grow().append(rows(6, 1, batch=2) + torch.tensor([0.0, 10])[:, None, None])
    assert run.rows[..., 0].tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 16]]
    assert run.append(rows(7, 1)).rows[:, -1, 0].tolist() == [7, 7]
    assert run.append(rows(7, 1).double()).rows.dtype == torch.float64
    assert run.append(rows(7, 1).half()).rows.dtype == torch.float32


def test_gradients_pass_what_is_appended():
    first, second, third = (rows(at, 1).requires_grad_() for at in (1, 2, 3))
    run = GrowingTensor.of(first, 1).append(second)
    saved = run.rows.square()  # keeps its input for the backward pass
    with torch.no_grad():
        run.append(rows(9, 1))
    (saved.sum() + run.append(third).rows.square().sum()).backward()
    assert [one.grad.item() for one in (first, second, third)] == [4, 8, 6]


def test_what_inference_wrote_can_be_read_and_followed_outside_it():
    with torch.inference_mode():
        run = GrowingTensor.of(rows(0, 1), 1).append(rows(1, 1))
        assert run.append(rows(2, 1)).buffer is run.buffer
    with torch.no_grad():
        later = run.append(rows(3, 1))
    assert later.rows.flatten().tolist() == [0, 1, 3]
    assert run.append(rows(4, 1)).rows.flatten().tolist() == [0, 1, 4]
