"""What a host installs: the three apps whole, nothing else, and only the needed dependencies."""

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from pip._internal.models.index import PyPI

from tests.support.rules import rule
from tools import wheel as wheels

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheels.build(tmp_path_factory.mktemp("dist"))


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(name).decode()


@rule("architecture 3")
def test_the_wheel_holds_the_three_apps_whole_and_nothing_else(wheel):
    assert list(wheels.problems(wheel)) == []


def test_a_file_too_many_and_a_file_too_few_are_told(wheel, tmp_path):
    other = tmp_path / "django_roundtable-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            if name != "schedules/py.typed":
                target.writestr(name, source.read(name))
        target.writestr("project/settings.py", "")
    said = list(wheels.problems(other))
    assert "schedules/py.typed is missing" in said
    assert "project/settings.py must not be in the wheel" in said


@rule("settled 34")
def test_a_host_gets_five_dependencies_and_psycopg_only_when_asked(wheel):
    required = re.findall(r"^Requires-Dist: (.+)$", metadata(wheel), re.MULTILINE)
    always = sorted(
        re.split(r"[<>=;! \[]", line)[0].lower() for line in required if "extra" not in line
    )
    assert always == ["croniter", "django", "django-tasks", "djangorestframework", "tzdata"]
    tasks = next(
        line for line in required if line.startswith("django-tasks") and "extra" not in line
    )
    assert re.search(r"python_version < ['\"]3\.12['\"]", tasks)
    # Django 5.2 runs on newer Pythons too: there the extra brings what the line above does not.
    asked = [line for line in required if line.startswith("django-tasks") and "extra" in line]
    assert [line.partition("; ")[2] for line in asked] == ["extra == 'tasks'"]
    assert any(line.startswith("psycopg") and "extra == 'postgres'" in line for line in required)
    croniter = next(line for line in required if line.startswith("croniter"))
    assert ">=6.2" in croniter
    assert "<8" in croniter


def decided():
    """{extra or "runtime": {package}} as the tables of the decision page have it."""
    page = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    tables, section = {}, None
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:].strip().strip("`[]")
        row = re.match(r"\| `([A-Za-z0-9_.-]+)` \| (.+) \|", line)
        if row and section:
            assert len(row.group(2)) > 10, f"{row.group(1)} has no reason"
            tables.setdefault(section, set()).add(row.group(1).lower())
    return tables


@rule("settled 34")
def test_every_dependency_has_its_reason_on_the_decision_page():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {"runtime": project["dependencies"], **project["optional-dependencies"]}

    def names(lines):
        found = {re.split(r"[<>=;! \[]", line)[0].lower() for line in lines}
        return found - {"django-roundtable"}

    assert {key: names(lines) for key, lines in declared.items()} == decided()


def test_the_package_says_one_version_everywhere():
    import coordination

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert coordination.__version__ == project["version"]
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in done.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def test_no_lock_file_registry_host_or_path_of_one_machine_is_committed():
    # The hosts are asked of pip, so that this file names none either and is searched too.
    hosts = "|".join(map(re.escape, (PyPI.netloc, PyPI.file_storage_domain)))
    bad = re.compile(rf"{hosts}|index[-]url|/(?:work|root)/|/home/\w+/".encode(), re.IGNORECASE)
    assert bad.search(PyPI.simple_url.encode())
    for file in tracked():
        assert file.name not in ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock"), file
        found = bad.search(file.read_bytes())
        assert found is None, (file.relative_to(ROOT), found)
