"""Which keys are sampled, and what is kept of them."""

from __future__ import annotations

import random

import polars as pl

from fennel_core.integrity.key_sample import KeySample, rank
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN


def versions(keys: list[int], first: int = 0, sign: int = 1) -> pl.DataFrame:
    """Return one version per key, at positions and times from `first` on."""
    numbers = range(first, first + len(keys))
    return pl.DataFrame(
        {
            "k": keys,
            "t": list(numbers),
            POS: [number.to_bytes(4, "big") for number in numbers],
            SIGN: pl.Series([sign] * len(keys), dtype=pl.Int8),
            IS_TOMBSTONE: [False] * len(keys),
        }
    )


def key(value: int) -> bytes:
    (found,) = key_bytes(pl.DataFrame({"k": [value]}), ["k"])
    return found


def test_a_sample_is_the_keys_of_smallest_rank_in_any_order_and_split_of_the_rows() -> None:
    keys = [number % 50 for number in range(200)]
    whole = versions(keys)
    smallest = sorted(range(50), key=lambda value: rank(7, key(value)))[:5]
    for order in range(5):
        sample = KeySample(("k",), 7, 5)
        shuffled = whole.sample(fraction=1.0, shuffle=True, seed=order)
        size = random.Random(order).randint(1, 60)  # noqa: S311  # repeatable, and no secret
        for start in range(0, 200, size):
            sample.add(shuffled[start : start + size])
        assert sample.chosen() == [key(value) for value in smallest]
        rows = sample.rows_of("t")
        assert {k: len(found) for k, found in rows.items()} == dict.fromkeys(sample.chosen(), 4)


def test_another_seed_makes_another_sample() -> None:
    samples = []
    for seed in range(3):
        sample = KeySample(("k",), seed, 5)
        sample.add(versions(list(range(1000))))
        samples.append(tuple(sample.chosen()))
    assert len(set(samples)) == 3


def test_keys_that_differed_before_are_in_every_sample() -> None:
    known = frozenset({key(3), key(4)})
    for limit in (0, 1, 5):
        sample = KeySample(("k",), 1, limit, known)
        for value in range(20):
            sample.add(versions([value], value))
        assert known <= set(sample.chosen())
        assert len(sample.chosen()) == 2 + limit


def test_a_key_with_too_many_rows_leaves_the_sample_and_is_counted() -> None:
    sample = KeySample(("k",), 1, 3, max_rows=10)
    sample.add(versions([1, 2, *[3] * 20]))
    assert set(sample.chosen()) == {key(1), key(2)}
    sample.add(versions([3, 3, 1], 100))
    assert (set(sample.chosen()), sample.too_large) == ({key(1), key(2)}, 1)
    assert {k: len(rows) for k, rows in sample.rows_of("t").items()} == {key(1): 2, key(2): 1}


def test_retracted_rows_are_gone_whatever_comes_first() -> None:
    sample = KeySample(("k",), 1, 3)
    sample.add(versions([1, 1], sign=-1))
    sample.add(versions([1, 1, 1]))
    (rows,) = sample.rows_of("t").values()
    assert [row.time for row in rows] == [2]


def test_rows_that_came_since_are_added_to_the_keys_that_were_chosen_only() -> None:
    sample = KeySample(("k",), 1, 5)
    sample.add(versions([1]))
    sample.add_of_sample(versions([1, 2], 10))
    assert {k: len(rows) for k, rows in sample.rows_of("t").items()} == {key(1): 2}


def test_a_hot_key_at_the_beginning_does_not_end_the_sample() -> None:
    sample = KeySample(("k",), 1, 3, max_rows=10)
    sample.add(versions([7] * 20))
    for value in range(9):
        sample.add(versions([value], 100 + value))
    smallest = sorted(set(range(9)) - {7}, key=lambda value: rank(1, key(value)))[:3]
    assert sample.chosen() == [key(value) for value in smallest]
