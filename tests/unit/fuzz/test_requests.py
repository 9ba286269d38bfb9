"""Mutated requests differ from valid ones, repeat with the seed, and can be sent."""

import random

from tests.fuzz.requests import mutated, valid_requests

VALID = valid_requests(b"\x0a\x03abc", "w")


def test_the_seed_determines_the_requests() -> None:
    def some(seed: int) -> list[object]:
        luck = random.Random(seed)  # noqa: S311  # repeatable, and no secret
        requests = [mutated(luck, luck.choice(VALID)) for _ in range(200)]
        return [(each.method, each.path, each.content, dict(each.headers)) for each in requests]

    assert some(5) == some(5)
    assert some(5) != some(6)


def test_most_mutations_change_the_request_and_every_body_can_be_encoded() -> None:
    luck = random.Random(1)  # noqa: S311  # repeatable, and no secret
    changed = 0
    for _ in range(2000):
        request = luck.choice(VALID)
        after = mutated(luck, request)
        assert after.content is None or isinstance(after.content, bytes)
        changed += (after.method, after.path, after.content, after.headers) != (
            request.method,
            request.path,
            request.content,
            request.headers,
        )
    assert changed > 1900
