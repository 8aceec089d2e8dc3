"""Orders of training: permutations, whole blocks, mixed labels."""

from __future__ import annotations

from eft.train.order import longest_run, order, spread


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
