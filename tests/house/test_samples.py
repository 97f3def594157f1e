"""The samples for operators are valid, fit the defaults, and name only flags that exist."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from django.core.management import load_command_class

from coordination import loops, supervision
from coordination.conf import CoordinationSettings
from coordination.coordinator import ExitCode

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "docs" / "samples"
UNIT = SAMPLES / "coordinator@.service"
MANIFEST = SAMPLES / "coordinator.yaml"
PAGE = ROOT / "docs" / "deploying.md"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def parsed(text):
    """The sections of a unit; no key of ours stands twice in a section."""
    unit = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str
    unit.read_string(text)
    return unit


def service():
    return parsed(UNIT.read_text())["Service"]


def manifest(kind):
    """The one object of this kind in the manifest."""
    (found,) = [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item["kind"] == kind]
    return found


def deployment():
    return manifest("Deployment")


def container():
    (found,) = deployment()["spec"]["template"]["spec"]["containers"]
    return found


def arguments_of(words):
    """What stands behind `manage.py run_coordinator`, as the command itself reads it."""
    at = words.index("run_coordinator")
    assert words[at - 1].endswith("manage.py")
    command = load_command_class("coordination", "run_coordinator")
    return command.create_parser("manage.py", "run_coordinator").parse_args(words[at + 1 :])


def least_stop_s(words):
    """Seconds that an ordered stop may need until the supervisor itself ends it."""
    grace = arguments_of(words).grace
    grace = CoordinationSettings.declared()["STOP_GRACE_S"].default() if grace is None else grace
    return grace + supervision.STOP_EXTRA_S


def test_the_unit_leaves_the_ordered_stop_its_time():
    words = shlex.split(service()["ExecStart"])
    assert Path(words[0]).is_absolute()
    assert float(service()["TimeoutStopSec"]) >= least_stop_s(words)
    assert service()["KillSignal"] == "SIGTERM"
    # To the supervisor alone; it passes the signal on.
    assert service()["KillMode"] == "mixed"


def test_the_unit_restarts_for_as_long_as_it_takes():
    assert service()["Restart"] == "always"
    assert parsed(UNIT.read_text())["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_worker_that_the_kernel_kills_for_memory_does_not_end_the_unit():
    assert service()["OOMPolicy"] == "continue"


def test_the_unit_starts_without_its_file_of_the_environment():
    assert service()["EnvironmentFile"].startswith("-/")


def test_the_readme_points_to_the_unit_and_shows_no_other():
    readme = (ROOT / "README.md").read_text()
    assert f"(docs/samples/{UNIT.name})" in readme
    assert "[Service]" not in readme


def test_the_unit_does_not_restart_what_no_restart_helps():
    codes = {int(code) for code in service()["RestartPreventExitStatus"].split()}
    assert codes == {ExitCode.USAGE, 4, ExitCode.LOCK_HELD}
    assert codes == set(supervision.FINAL_CODES)


def test_systemd_accepts_the_unit(tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze on this machine")
    file = tmp_path / "shop-sample@.service"
    # The example's interpreter and folder are of another machine.
    file.write_text(UNIT.read_text().replace("/srv/shop/.venv/bin/python", sys.executable))
    done = subprocess.run(
        [tool, "verify", "--man=no", file], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, ours(done, file)) == (0, []), done.stderr


def ours(done, file):
    """What it says about our file, not about units that the machine has."""
    name = file.name.split("@")[0]
    return [line for line in (done.stdout + done.stderr).splitlines() if name in line]


def test_systemd_would_notice_a_wrong_key(tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze on this machine")
    file = tmp_path / "shop-wrong@.service"
    text = UNIT.read_text().replace("/srv/shop/.venv/bin/python", sys.executable)
    file.write_text(text.replace("TimeoutStopSec", "TimeoutStopSeconds"))
    done = subprocess.run(
        [tool, "verify", "--man=no", file], capture_output=True, text=True, timeout=60
    )
    assert ours(done, file)


def test_the_manifest_is_a_deployment_whose_parts_fit():
    found = deployment()
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", "Deployment")
    spec = found["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_a_rollout_waits_for_a_container_that_stays_up():
    # Readiness judges the cluster, so it passes for a pod that comes and goes beside healthy ones.
    assert deployment()["spec"]["minReadySeconds"] >= 60
    assert deployment()["spec"]["minReadySeconds"] > container()["readinessProbe"]["periodSeconds"]


def test_a_drain_takes_one_pod_at_a_time_and_is_not_held_up_by_an_unhealthy_cluster():
    budget = manifest("PodDisruptionBudget")
    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": deployment()["spec"]["selector"],
    }


def test_pods_spread_over_nodes_where_there_is_room():
    (spread,) = deployment()["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread == {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": deployment()["spec"]["selector"],
    }


def test_the_pod_leaves_the_ordered_stop_its_time_and_signals_reach_the_supervisor():
    pod = deployment()["spec"]["template"]["spec"]
    words = container()["command"]
    assert pod["terminationGracePeriodSeconds"] >= least_stop_s(words)
    # Without a shell the supervisor is process 1 and gets SIGTERM.
    assert words[0] == "python"


def test_readiness_is_the_commands_own_verdict_and_nothing_restarts_pods_in_an_outage():
    assert "livenessProbe" not in container()
    probe = container()["readinessProbe"]
    arguments = arguments_of(probe["exec"]["command"])
    assert arguments.check
    assert arguments.max_age >= 2 * probe["periodSeconds"]


def test_only_flags_that_exist_are_named():
    done = subprocess.run(
        [sys.executable, "manage.py", "run_coordinator", "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    known = set(FLAG.findall(done.stdout))
    assert {"--processes", "--grace", "--check"} <= known
    foreign = {"--now"}  # of systemctl
    for file in (UNIT, MANIFEST, PAGE):
        named = set(FLAG.findall(file.read_text()))
        assert named - foreign <= known, file.name
    assert all(role in PAGE.read_text() for role in loops.ROLES)


def test_the_page_points_to_both_samples():
    text = PAGE.read_text()
    for file in SAMPLES.iterdir():
        assert f"(samples/{file.name})" in text
