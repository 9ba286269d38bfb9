"""Commit definitions to a branch: plan and reserve, create missing assets, switch, destroy
superseded assets. See ARCHITECTURE.md.
"""

from airflow.sdk import dag
from fennel_airflow.factory import COMMIT
from fennel_airflow.tasks import compile_definitions, create_assets, destroy_assets, switch, undo


@dag(**COMMIT)
def commit():
    compiled, created, switched = compile_definitions(), create_assets(), switch()
    compiled >> created >> switched >> destroy_assets()
    [compiled, created, switched] >> undo()


commit()
