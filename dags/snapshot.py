"""Snapshot the state of every job partition to S3, slot by slot; then delete superseded snapshots
and expired records.
"""

from airflow.sdk import dag
from fennel_airflow.factory import SNAPSHOT
from fennel_airflow.tasks import owning_slots, prune_snapshots, shorten_logs, snapshot_slot


@dag(**SNAPSHOT)
def snapshot():
    snapshot_slot.expand(address=owning_slots())
    prune_snapshots() >> shorten_logs()


snapshot()
