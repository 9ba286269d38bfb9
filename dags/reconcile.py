"""Finish commits whose process died, retry destructions, and delete orphaned topics."""

from airflow.sdk import dag
from fennel_airflow.factory import RECONCILE
from fennel_airflow.tasks import reconcile_ledgers


@dag(**RECONCILE)
def reconcile():
    reconcile_ledgers()


reconcile()
