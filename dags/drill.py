"""Verify that job partitions can be rebuilt: restore the newest snapshot to a copy, replay, compare
it with the live state, and discard it.
"""

from airflow.sdk import dag
from fennel_airflow.factory import DRILL
from fennel_airflow.tasks import drill_partitions


@dag(**DRILL)
def drill():
    drill_partitions()


drill()
