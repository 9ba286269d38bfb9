"""Small compiled commits, given as one word per dataset."""

from __future__ import annotations

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import (
    AssetKey,
    AssetKind,
    Compiled,
    LogicalDataset,
    LogicalJob,
    LogicalTopic,
)
from fennel_core.operators import spec
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import DatasetName, Identity
from fennel_core.vocab.schema import Schema

SCHEMA = Schema((Field("key", Str()),), (Field("value", Int()),), "at")


def key(kind: AssetKind, *words: str) -> AssetKey:
    return AssetKey(kind, Identity(stored_names.digest(words)))


def toy(*words: str, partitions: int = 2) -> Compiled:
    """Compile a commit of one keyed dataset with a table job per word.

    Words that end in `-` get no job; equal words are equal assets.
    """
    dead = LogicalTopic(key(AssetKind.DEAD, "dead"), partitions, "dead letters", "")
    topics, jobs, datasets = [dead], [], []
    for text in words:
        word = text.removesuffix("-")
        content = LogicalTopic(key(AssetKind.TOPIC, word), partitions, word, word)
        if text != word:
            topics.append(content)
            datasets.append(
                LogicalDataset(
                    DatasetName(word), 1, SCHEMA, content.key, None, False, False, (), True
                )
            )
            continue
        log = LogicalTopic(key(AssetKind.REPLAYLOG, word), partitions, word, word)
        job = LogicalJob(
            key(AssetKind.JOB, word),
            (content.key,),
            (),
            spec.TableSpec(SCHEMA),
            log.key,
            dead.key,
            partitions,
            f"{word}: table",
            word,
        )
        topics += [content, log]
        jobs.append(job)
        datasets.append(
            LogicalDataset(
                DatasetName(word), 1, SCHEMA, content.key, job.key, True, False, (), True
            )
        )
    return Compiled(tuple(topics), tuple(jobs), tuple(datasets), (), partitions)
