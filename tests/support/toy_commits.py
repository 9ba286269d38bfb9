"""Small compiled commits, given as one word per dataset."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.identity import source_topic
from fennel_core.blueprints.logical import (
    AssetKey,
    AssetKind,
    Compiled,
    LogicalDataset,
    LogicalJob,
    LogicalOutput,
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

    `a`: a source dataset. `b<a`: a dataset that a pipeline job computes from the content of `a`;
    `b<a+c` reads two. `b@2<a` is another version of the same dataset. Words that end in `-` get no
    table job; equal words are equal assets.
    """
    dead = LogicalTopic(key(AssetKind.DEAD, "dead"), partitions, "dead letters", "")
    topics, jobs, datasets = [dead], [], []
    # An input is named by what stands before its `<`, and its identity covers its own inputs.
    content = {}
    for text in words:
        word = text.removesuffix("-")
        name, _, inputs = word.partition("<")
        read = [content[each] for each in inputs.split("+") if each]
        shape = Schema((Field("key", Str()),), (Field(word, Int()),), "at")
        identity = (
            key(AssetKind.TOPIC, word, *(str(each.key.identity) for each in read))
            if read
            else source_topic((), shape, 1)
        )
        dataset = name.partition("@")[0]
        topic = content[name] = LogicalTopic(identity, partitions, dataset, dataset)
        topics.append(topic)
        if read:
            job, log = _job("pipeline", identity, tuple(each.key for each in read), dead, topic)
            topics.append(log)
            jobs.append(replace(job, outputs=(LogicalOutput(topic.key, ()),)))
        served_by = None
        if text == word:
            job, log = _job("table", identity, (topic.key,), dead, topic)
            topics.append(log)
            jobs.append(job)
            served_by = job.key
        datasets.append(
            LogicalDataset(
                DatasetName(topic.title),
                1,
                shape,
                topic.key,
                served_by,
                served_by is not None,
                False,
                (),
                not read,
            )
        )
    return Compiled(tuple(topics), tuple(jobs), tuple(datasets), (), partitions)


def _job(
    role: str,
    content: AssetKey,
    inputs: tuple[AssetKey, ...],
    dead: LogicalTopic,
    topic: LogicalTopic,
) -> tuple[LogicalJob, LogicalTopic]:
    """Return a job of the dataset with `content`, and its replaylog."""
    words = (role, content.identity)
    log = LogicalTopic(
        key(AssetKind.REPLAYLOG, *words), topic.partitions, topic.title, topic.entity
    )
    job = LogicalJob(
        key(AssetKind.JOB, *words),
        inputs,
        (),
        spec.TableSpec(SCHEMA),
        log.key,
        dead.key,
        topic.partitions,
        f"{topic.title}: {role}",
        topic.entity,
    )
    return job, log
