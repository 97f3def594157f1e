"""The page of faults and the tests of faults name the same ones."""

import re

from tests.house.test_docs import ROOT


def test_each_fault_that_is_tried_stands_on_the_page_and_the_other_way_round():
    tried = set()
    for file in (ROOT / "tests" / "cluster" / "faults").glob("test_*.py"):
        for name in re.findall(r"^def test_((?:f\d+_)+)", file.read_text(), re.MULTILINE):
            tried |= {part.upper() for part in name.strip("_").split("_")}
    told = set(
        re.findall(r"^\| (F\d+) \|", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    )
    assert tried == told
    assert len(tried) >= 14
