"""A process that is alive but dead inside: one of its loops never comes back from a tick."""

import signal

import pytest

from tests.support.cluster import wait
from tests.support.rules import rule

pytestmark = pytest.mark.cluster

APP = """
import time
from pathlib import Path
from django.apps import AppConfig

PLACE = Path({place!r})

def tick(context):
    while (PLACE / "hang").exists():
        time.sleep(0.05)

class Saboteur(AppConfig):
    name = "saboteur"
    def ready(self):
        from coordination.loops import Loop, register
        register(Loop("saboteur.tick", 0.5, tick))
"""


@pytest.fixture
def spoiled(tmp_path):
    """An environment in which a loop hangs for as long as the file `hang` exists."""
    (tmp_path / "spoiled.py").write_text(
        "from project.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'saboteur']\n"
    )
    (tmp_path / "saboteur").mkdir()
    (tmp_path / "saboteur" / "__init__.py").write_text("")
    (tmp_path / "saboteur" / "apps.py").write_text(APP.format(place=str(tmp_path)))
    return {"DJANGO_SETTINGS_MODULE": "spoiled", "PYTHONPATH": str(tmp_path)}


@rule("coordination HB6", "coordination SF8")
def test_a_worker_whose_loop_hangs_leads_no_more_says_so_and_comes_back(cluster, tmp_path, spoiled):
    process = cluster.start(supervised=True, COORDINATION_LEASE_S="6", **spoiled)
    process.wait_event("lease.acquired")
    (tmp_path / "hang").touch()
    hung = process.wait_event("loop.stalled", seconds=20)
    assert hung["loops"] == ["saboteur.tick"]
    process.wait_event("lease.released")
    found = wait(
        lambda: (
            (row := cluster.status()["workers"][0])["info"]["loops"]["saboteur.tick"]["stalled"]
            and row
        ),
        what="its row says so",
    )
    assert found["state"] == "alive"
    # It was the only one: that nobody leads comes from the hang, so the hang is what is said.
    assert cluster.status()["verdict"]["code"] == "cluster.loop_stalled"
    (tmp_path / "hang").unlink()
    process.wait_event("lease.acquired", n=2)
    # It hung, but it said so: no reason to kill it.
    assert process.events("supervisor.kill") == []
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.text()
