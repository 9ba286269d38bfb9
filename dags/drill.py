"""Try whether job partitions could be rebuilt: restore the newest snapshot beside the live state,
replay, compare, discard.
"""

from airflow.sdk import dag
from fennel_airflow.factory import DRILL
from fennel_airflow.tasks import drill_partitions


@dag(**DRILL)
def drill():
    drill_partitions()


drill()
