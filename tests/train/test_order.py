"""Orders of training: permutations, whole blocks, mixed labels."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from eft.train.order import clashes, longest_run, micro_batches, order, partner, spread

tables = st.lists(st.tuples(st.integers(1, 500), st.sampled_from("abcd")), min_size=1, max_size=80)


def dealt(table: list, block: int, step: int, group: bool) -> tuple[list[int], list[int], list[str]]:
    """(rows in micro batches, lengths, tasks); the table repeated until its steps are full."""
    lengths, tasks = [n for n, _ in table], [t for _, t in table]
    rows = [i % len(table) for i in range(math.ceil(len(table) / step) * step)]
    return micro_batches(rows, lengths, tasks, step=step, block=block, group=group), lengths, tasks


@given(tables, st.integers(2, 4), st.integers(1, 5), st.booleans())
def test_no_row_changes_its_step(table: list, block: int, blocks: int, group: bool) -> None:
    step = block * blocks
    rows, _, _ = dealt(table, block, step, group)
    assert len(rows) % step == 0
    for start in range(0, len(rows), step):
        assert sorted(rows[start : start + step]) == sorted(i % len(table) for i in range(start, start + step))


@given(tables, st.integers(2, 4), st.integers(1, 5))
def test_no_partner_is_of_the_same_task_where_it_can_be_avoided(table: list, block: int, blocks: int) -> None:
    """With blocks of two: a step with no task in more than half of its rows has no clash."""
    step = 2 * blocks
    rows, _, tasks = dealt(table, 2, step, True)
    for start in range(0, len(rows), step):
        here = rows[start : start + step]
        most = max(sum(tasks[i] == t for i in here) for t in "abcd")
        at_best = max(0, 2 * most - step)
        assert len(clashes(here, tasks, 2)) == at_best


@given(st.integers(0, 1000), st.integers(2, 8))
def test_partners_are_a_rotation_of_the_block(place: int, block: int) -> None:
    first = place // block * block
    assert sorted(partner(k, block) for k in range(first, first + block)) == list(range(first, first + block))
    assert partner(place, block) != place


def test_like_lengths_meet_and_the_longest_come_first() -> None:
    lengths = [(i * 37) % 100 + 1 for i in range(64)]
    tasks = [f"t{i % 5}" for i in range(64)]
    plain = micro_batches(list(range(64)), lengths, tasks, step=32, block=2, group=False)
    grouped = micro_batches(list(range(64)), lengths, tasks, step=32, block=2, group=True)

    def padded(rows: list[int]) -> int:
        return sum(2 * max(lengths[i] for i in rows[k : k + 2]) for k in range(0, 64, 2))

    assert padded(grouped) < 0.85 * padded(plain) and padded(grouped) < 1.1 * sum(lengths)
    assert max(lengths[i] for i in grouped[:2]) == max(lengths[i] for i in grouped[:32])
    assert not clashes(grouped, tasks, 2) and not clashes(plain, tasks, 2)


def test_one_task_alone_is_counted_not_refused() -> None:
    rows = micro_batches([0, 1, 2, 3], [4, 3, 2, 1], ["a"] * 4, step=4, block=2, group=True)
    assert rows == [0, 1, 2, 3] and len(clashes(rows, ["a"] * 4, 2)) == 4


def test_every_epoch_is_a_permutation() -> None:
    indices = order(list(range(10)), [1] * 10, steps=5, batch=4, seed=0, shuffle=True, group=False)
    assert sorted(indices[:10]) == sorted(indices[10:]) == list(range(10)) and indices[:10] != indices[10:]


def test_grouping_by_length_keeps_the_rows_and_saves_padding() -> None:
    lengths = [(i * 37) % 100 + 1 for i in range(400)]
    plain = order(list(range(400)), lengths, 100, 4, 0, shuffle=True, group=False)
    grouped = order(list(range(400)), lengths, 100, 4, 0, shuffle=True, group=True)

    def padded(indices: list[int]) -> int:
        return sum(4 * max(lengths[i] for i in indices[k : k + 4]) for k in range(0, 400, 4))

    assert sorted(grouped) == sorted(plain) and padded(grouped) < 0.75 * padded(plain)
    assert [lengths[i] for i in grouped] != sorted(lengths[i] for i in grouped), "long rows do not all come last"


def test_kto_keeps_the_tables_order_and_mends_a_sorted_one() -> None:
    mixed = [True, False] * 6
    assert spread(list(range(12)), mixed) == list(range(12))
    by_label = [True] * 8 + [False] * 4
    mended = spread(list(range(12)), by_label)
    assert sorted(mended) == list(range(12)) and longest_run([by_label[i] for i in mended]) <= 3
    assert [i for i in mended if by_label[i]] == list(range(8)), "each label's own order is kept"
