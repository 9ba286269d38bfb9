"""The headers of dead letters can be read back, also those of messages that lack some."""

import pytest

from fennel_core.vocab.dead_letters import DeadLetterKind, DeadLetterOrigin, origin_of
from fennel_core.vocab.versions import FORMAT_HEADER


@pytest.mark.parametrize("kind", DeadLetterKind)
def test_an_origin_is_read_back_from_its_headers(kind: DeadLetterKind) -> None:
    origin = DeadLetterOrigin(kind, "w.job.x.1", "Überblick: map", "column `a`: 'ß' is no number")
    assert origin_of(origin.headers()) == origin
    assert FORMAT_HEADER in origin.headers()


def test_a_message_of_an_earlier_version_is_unclassified() -> None:
    found = origin_of((FORMAT_HEADER, ("reason", b"no such column")))
    assert found == DeadLetterOrigin(DeadLetterKind.UNCLASSIFIED, "", "", "no such column")


def test_an_unknown_kind_is_unclassified() -> None:
    assert origin_of((("kind", b"of-a-later-version"),)).kind is DeadLetterKind.UNCLASSIFIED
