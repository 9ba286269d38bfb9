"""Leave out of a commit what depends on entities that could not be decoded.

The rest is validated like a commit, so that its problems are reported together with the undecodable
entities. A dataset is left out with its pipelines, sources, sinks, indices and expectations if any
of them is undecodable, and so is a featureset with its features and extractors. What reads from one
that is left out is left out as well: its problems could be consequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from fennel_core.wire.entities import SyncRequest


def independent_entities(request: SyncRequest, undecodable: Collection[str]) -> SyncRequest:
    """Return the entities of `request` that do not depend on `undecodable`.

    These are full names (`Dataset`, `Dataset.pipeline`, `Featureset.feature`).
    """
    left_out = {name.partition(".")[0] for name in undecodable}
    reads = list(_reads(request))
    while more := {reader for reader, read in reads if read in left_out} - left_out:
        left_out |= more
    return replace(
        request,
        datasets=tuple(d for d in request.datasets if d.name not in left_out),
        pipelines=tuple(p for p in request.pipelines if p.dataset not in left_out),
        operators=tuple(o for o in request.operators if o.dataset not in left_out),
        featuresets=tuple(f for f in request.featuresets if f.name not in left_out),
        features=tuple(f for f in request.features if f.ref.featureset not in left_out),
        extractors=tuple(x for x in request.extractors if x.featureset not in left_out),
        sources=tuple(s for s in request.sources if s.dataset not in left_out),
        sinks=tuple(s for s in request.sinks if s.dataset not in left_out),
        indices=tuple(i for i in request.indices if i.dataset not in left_out),
        expectations=tuple(e for e in request.expectations if e.entity not in left_out),
    )


def _reads(request: SyncRequest) -> Iterator[tuple[str, str]]:
    """Yield each dataset or featureset with each one that it reads."""
    for pipeline in request.pipelines:
        yield from ((pipeline.dataset, read) for read in pipeline.inputs)
    for extractor in request.extractors:
        yield from ((extractor.featureset, read) for read in extractor.datasets)
        yield from ((extractor.featureset, read.featureset) for read in extractor.inputs)
