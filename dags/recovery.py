"""Rebuild selected job partitions: their owners discard local state, restore the newest snapshot
and replay the records after it.
"""

from airflow.sdk import dag
from fennel_airflow.factory import RECOVERY
from fennel_airflow.tasks import choose_partitions, rebuild_partitions


@dag(**RECOVERY)
def recovery():
    choose_partitions() >> rebuild_partitions()


recovery()
