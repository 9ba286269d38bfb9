"""Positions of sinks: what is stored, and what a copy shows to be lost."""

from __future__ import annotations

from fennel_core.sinks.positions import SinkPosition, decode, encode, lost

AT = SinkPosition("cluster/topic", {0: 4, 11: 7}, 3, 9)


def test_a_stored_position_is_read_back() -> None:
    assert decode(encode(AT)) == AT


def test_a_position_that_is_behind_its_copy_was_lost() -> None:
    assert lost(AT, SinkPosition("cluster/topic", {0: 4, 11: 8})) == {11: (7, 8)}
    assert lost(None, AT) == {0: (0, 4), 11: (0, 7)}
    assert lost(AT, SinkPosition("cluster/topic", {0: 1})) == {}
    assert lost(AT, None) == {}
