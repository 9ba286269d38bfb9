"""Stored names of jobs, catalogs and blueprints, and the codec for everything that is stored.

Use `dumps`, `loads` and `digest` of this module for every value that goes into the registry or into
an identity. Names here and in `wire.stored_names` are frozen since version 0.1.0; to rename a class
or field in Python, change only the Python side of the row. The reasons are in
`docs/decisions/0029-stored-names-are-a-frozen-table.md`.
"""

from __future__ import annotations

from typing import Final

from fennel_core.blueprints.logical import (
    AssetKey,
    AssetKind,
    LogicalJob,
    LogicalOutput,
    LogicalTopic,
)
from fennel_core.blueprints.spec import (
    Catalog,
    DatasetView,
    Job,
    Output,
    SinkBinding,
    SourceBinding,
)
from fennel_core.operators import spec as s
from fennel_core.vocab.canonical import Stored, StoredNames
from fennel_core.wire import stored_names as wire

_STEPS: Final = (
    Stored("step.table", s.TableSpec, "schema"),
    Stored("step.map", s.MapSpec, "inputs branches output"),
    Stored("step.map.stage", s.MapStage, "op output"),
    Stored("step.user_code", s.UserCodeSpec, "kind code column input output"),
    Stored("step.source_replay", s.SourceReplaySpec, "dataset source schema"),
    Stored(
        "step.join",
        s.JoinSpec,
        "left right left_on right_values inner low_us high_us output",
    ),
    Stored("step.aggregate", s.AggregateSpec, "input keys specs along terminal output"),
    Stored("step.first_latest", s.FirstLatestSpec, "input keys first output"),
    Stored("step.dedup", s.DedupSpec, "input by window output"),
    Stored("step.changelog", s.ChangelogSpec, "input kind_column deletes output"),
    Stored("step.windows", s.WindowsSpec, "input by field window output specs"),
    Stored("step.intervals", s.IntervalsSpec, "input output"),
)

_JOBS: Final = (
    Stored(
        "job",
        Job,
        "id workspace inputs outputs step replaylog dead_letters partitions title",
    ),
    Stored("output", Output, "topic partition_by watermark"),
    Stored("catalog", Catalog, "workspace datasets sources jobs partitions sinks"),
    Stored(
        "catalog.dataset",
        DatasetView,
        "name version schema topic served_by online offline erase_keys is_source history_us",
    ),
    Stored(
        "catalog.source",
        SourceBinding,
        "identity webhook endpoint source dataset schema topic raw_topic dead_letters positions",
    ),
    Stored(
        "catalog.sink", SinkBinding, "positions sink dataset schema erase_keys topic dead_letters"
    ),
)

_BLUEPRINTS: Final = (
    Stored("asset_key", AssetKey, "kind identity"),
    Stored("asset_kind", AssetKind, "topic raw positions replaylog dead query_log sink job"),
    Stored("logical_topic", LogicalTopic, "key partitions title entity"),
    Stored(
        "logical_job",
        LogicalJob,
        "key inputs outputs step replaylog dead_letters partitions title entity",
    ),
    Stored("logical_output", LogicalOutput, "topic partition_by watermark"),
)

NAMES: Final = StoredNames((*wire.ROWS, *_STEPS, *_JOBS, *_BLUEPRINTS))
dumps = NAMES.dumps
loads = NAMES.loads
digest = NAMES.digest
