"""Recompute a sample of what lookups return from history, and compare: a difference is an alarm
until the same keys agree again.
"""

from airflow.sdk import dag
from fennel_airflow.factory import INTEGRITY
from fennel_airflow.tasks import check_integrity


@dag(**INTEGRITY)
def integrity():
    check_integrity()


integrity()
