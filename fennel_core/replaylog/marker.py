"""Markers: what each iteration of a job partition did, as a message on its replaylog.

Theory. A marker commits in the same Kafka transaction as the outputs that it records. So a
committed marker proves that the outputs of exactly these input ranges exist. After a crash the
state is behind the replaylog by at most the iterations it had not applied. Replay runs the same
step over the same ranges, emits nothing, and must produce the same digest of mutations. An epoch
marker opens each ownership; a reader that finds a higher epoch than its own is a zombie.

Format: msgpack array `[FORMAT, kind, epoch, iteration, ranges, step_version, state_format,
environment, digest]`. It has no field names, so Python names do not affect the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from fennel_core.vocab.ids import Epoch, Offset, TopicName

FORMAT: Final = 1
_EPOCH: Final = "epoch"
_ITERATION: Final = "iteration"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class ReplaylogError(Exception):
    """Base class of every failure of this package. `code` is stable and never reused."""

    code: ClassVar[str] = "replaylog-failed"


class MarkerMalformed(ReplaylogError):
    """Another version wrote the marker. Run that version, or rebuild the job partition."""

    code = "marker-malformed"


@dataclass(frozen=True, slots=True)
class ConsumedRange:
    """Records [first, next) of this job partition's share of `topic`."""

    topic: TopicName
    first: Offset
    next: Offset


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """The first message that an owner commits."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class IterationMarker:
    """One committed iteration."""

    epoch: Epoch
    iteration: int
    """Counts from 1 over the life of the job partition, across epochs."""
    ranges: tuple[ConsumedRange, ...]
    step_version: int
    state_format: int
    environment: str
    """Hash of the platform's environment, which explains another digest after an upgrade."""
    digest: bytes
    """Of the mutations that this iteration made to state."""


Marker = EpochMarker | IterationMarker


def encode_marker(marker: Marker) -> bytes:
    """Return the message value of a marker."""
    match marker:
        case EpochMarker(epoch):
            return _encode([FORMAT, _EPOCH, epoch])
        case IterationMarker():
            ranges = [[r.topic, r.first, r.next] for r in marker.ranges]
            rest = [marker.step_version, marker.state_format, marker.environment, marker.digest]
            return _encode([FORMAT, _ITERATION, marker.epoch, marker.iteration, ranges, *rest])


def decode_marker(value: bytes) -> Marker:
    """Return the marker in a message value; MarkerMalformed if another version wrote it."""
    fields = _decode(value)
    if fields[0] != FORMAT:
        raise MarkerMalformed(
            f"replaylog marker format {fields[0]} is not {FORMAT}: run the version "
            "that wrote it, or rebuild the job partition"
        )
    if fields[1] == _EPOCH:
        return EpochMarker(Epoch(fields[2]))
    epoch, iteration, ranges, step_version, state_format, environment, digest = fields[2:]
    parsed = tuple(ConsumedRange(TopicName(t), Offset(a), Offset(b)) for t, a, b in ranges)
    return IterationMarker(
        Epoch(epoch), iteration, parsed, step_version, state_format, environment, digest
    )
