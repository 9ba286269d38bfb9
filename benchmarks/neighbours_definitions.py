"""The featuresets that `neighbours.py` queries; commits one set, with the client's environment.

.venv-executor/bin/python -m benchmarks.neighbours_definitions URL dev-bench hostile
"""

# ruff: noqa: ARG002  # extractors have the parameters that the client asks for
import sys

import pandas as pd
from fennel.client import Client
from fennel.featuresets import extractor, featureset
from fennel.lib import inputs, meta, outputs


@meta(owner="bench@example.com")
@featureset
class Fine:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
        return pd.Series(given + 1, name="out")


@meta(owner="bench@example.com")
@featureset
class Loops:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
        while True:
            pass


@meta(owner="bench@example.com")
@featureset
class Forks:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
        import os

        while True:
            os.fork()


@meta(owner="bench@example.com")
@featureset
class Grows:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
        import numpy as np

        held = []
        while True:
            held.append(np.ones(10_000_000))


@meta(owner="bench@example.com")
@featureset
class Threads:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
        import threading
        import time

        while True:
            threading.Thread(target=time.sleep, args=(60,)).start()


@meta(owner="bench@example.com")
@featureset
class Ends:
    given: int
    out: int

    @extractor
    @inputs("given")
    @outputs("out")
    def run(cls, ts: pd.Series, given: pd.Series):
        import os

        os._exit(1)


SETS = {"fine": [Fine], "hostile": [Loops, Forks, Grows, Threads, Ends]}


def main(url: str, token: str, which: str) -> None:
    Client(url, token).commit(message="neighbours", featuresets=SETS[which])


if __name__ == "__main__":
    main(*sys.argv[1:4])
