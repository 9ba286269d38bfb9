"""Rebuild named job partitions: their owners put local state aside, start from the newest snapshot
and replay what came after it.
"""

from airflow.sdk import dag
from fennel_airflow.factory import RECOVERY
from fennel_airflow.tasks import choose_partitions, rebuild_partitions


@dag(**RECOVERY)
def recovery():
    choose_partitions() >> rebuild_partitions()


recovery()
