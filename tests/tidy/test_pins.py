"""Pinned versions on which the two environments depend."""

import importlib.metadata
from pathlib import Path

import pyspark

from tests.tidy.tree import ROOT


def test_pyspark_and_its_client_package_have_the_same_version() -> None:
    """Two wheels write into `pyspark/`; with different versions the folder is a mixture of both."""
    assert pyspark.__version__ == "4.2.0"
    assert importlib.metadata.version("pyspark-client") == "4.2.0"
    assert list((Path(pyspark.__file__).parent / "jars").glob("spark-core_2.13-4.2.0.jar"))


def test_each_direct_requirement_is_in_its_lock() -> None:
    for inputs, lock in (
        (("platform.in", "dev.in"), "platform.lock"),
        (("executor.in",), "executor.lock"),
        (("scan.in",), "scan.lock"),
    ):
        locked = {
            line.split("==")[0]
            for line in (ROOT / "requirements" / lock).read_text().splitlines()
            if "==" in line and line[0].isalpha()
        }
        for name in inputs:
            wanted = [
                line.split("==")[0].split("[")[0].strip()
                for line in (ROOT / "requirements" / name).read_text().splitlines()
            ]
            missing = {w.lower().replace("_", "-") for w in wanted if w and w[0].isalpha()} - locked
            assert missing == set(), f"{missing} are in {name} but not in {lock}: run `make lock`"
