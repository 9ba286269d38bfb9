"""`docs/client_compatibility.md` lists the tests of the ratchet."""

from tests.conformance.page import PAGE, features, rendered
from tests.conformance.run import RATCHET, listed


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == rendered(), "run python -m tests.conformance.page --write"


def test_every_test_of_the_ratchet_shows_a_feature() -> None:
    passing = listed(RATCHET)
    shown = {test for feature in features() for test in feature.tests(passing)}
    assert sorted(set(passing) - shown) == []


def test_every_listed_test_is_in_the_ratchet() -> None:
    passing = listed(RATCHET)
    absent = [
        prefix
        for feature in features()
        for prefix in feature.prefixes
        if not any(test.split("fennel/client_tests/")[1].startswith(prefix) for test in passing)
    ]
    assert absent == []
