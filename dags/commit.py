"""Commit definitions to a branch: plan and reserve, create missing assets, switch, wait until reads
have moved, destroy superseded assets. See ARCHITECTURE.md.
"""

from airflow.sdk import dag
from fennel_airflow import tasks
from fennel_airflow.factory import COMMIT


@dag(**COMMIT)
def commit():
    compiled, created, switched = tasks.compile_definitions(), tasks.create_assets(), tasks.switch()
    compiled >> created >> switched >> tasks.warm() >> tasks.destroy_assets()
    [compiled, created, switched] >> tasks.undo()


commit()
