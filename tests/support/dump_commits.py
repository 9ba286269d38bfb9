"""Write the commit of every module in `client_definitions`, in the bytes that the client sends.

    .venv-executor/bin/python tests/support/dump_commits.py tests/golden/wire

The client's interpreter runs this script. Serialisation is deterministic, so unchanged definitions
give unchanged files.
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fennel.internal_lib.to_proto.to_proto import to_sync_request_proto

SUBJECTS = ("operators", "expressions", "connectors", "featuresets", "corrections")


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for subject in SUBJECTS:
        module = importlib.import_module(f"client_definitions.{subject}")
        request = to_sync_request_proto(module.OBJECTS, f"golden {subject}", module.ENV)
        (target / f"{subject}.binpb").write_bytes(request.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
