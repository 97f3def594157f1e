"""Every statement of the leader carries its token and matches nothing without it."""

import ast
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import F

from coordination import reasons
from coordination.database import dbnow
from coordination.leases import LeaderToken
from coordination.models import Lease
from coordination.writers import inspect, writers
from schedules import checks, fires, outbox, sentences, states, targets
from schedules.fires import record
from schedules.models import Schedule, ScheduleFire, TriggerDelivery, TriggerEvent
from tests.support import firing
from tests.support.rules import rule

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found:
        yield found


def advance(guard):
    row = firing.schedule()
    at = firing.overdue(row)
    change = record.Advance(row.pk, at, row.version, None, None, "", 0)
    return len(record.advance([change], guard))


def route(guard):
    with firing.event_kind(), transaction.atomic():
        event = outbox.emit("tests.happened", "", {})
    return len(outbox.route([event], guard))


def open_windows(guard):
    return outbox.open_windows([(firing.schedule().pk, dbnow())], guard)


def take_window(guard):
    row = firing.schedule()
    end = dbnow().replace(microsecond=0)
    Schedule.objects.filter(pk=row.pk).update(window_end=end)
    closing = outbox.Closing(row.pk, end, "fired", None, None, merged=True)
    return int(outbox.take_window(closing, None, guard))


VERBS = {
    "fires.advance": advance,
    "outbox.route": route,
    "outbox.open_windows": open_windows,
    "outbox.take_window": take_window,
}


def older_epoch(guard):
    Lease.objects.update(epoch=F("epoch") + 1)


def other_owner(guard):
    Lease.objects.update(owner="somebody else")


def other_lease(guard):
    Lease.objects.update(name="another lease")


def lapsed(guard):
    Lease.objects.update(lease_until=dbnow() - timedelta(milliseconds=50))


STALE = (older_epoch, other_owner, other_lease, lapsed)


@rule("architecture D3")
@pytest.mark.django_db
def test_each_registered_statement_of_this_app_names_its_token_and_has_a_case_here():
    own = {item.name: item for item in writers() if item.name.startswith(("fires.", "outbox."))}
    assert set(own) == set(VERBS)
    for writer in own.values():
        assert inspect(writer).missing == ()
        assert {"name", "owner", "epoch", "lease_until"} <= set(writer.token)


@rule("architecture D3", "coordination LL6")
@pytest.mark.django_db
@pytest.mark.parametrize("name", VERBS)
def test_a_live_token_writes(name):
    assert VERBS[name](firing.leader().guard()) == 1


@rule("architecture D3", "coordination LL6")
@pytest.mark.django_db
@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("make_stale", STALE)
def test_a_stale_token_writes_nothing(name, make_stale):
    guard = firing.leader().guard()
    make_stale(guard)
    assert VERBS[name](guard) == 0


@rule("coordination SQ1")
@pytest.mark.django_db
def test_in_embedded_mode_a_late_beat_costs_no_write():
    guard = firing.leader().guard()
    lapsed(guard)
    held = LeaderToken(guard.name, guard.owner, guard.epoch, lapses=False)
    assert advance(held) == 1


@rule("schedules S5", "schedules H7")
@pytest.mark.django_db
@pytest.mark.parametrize(
    "change", [{"version": 2}, {"enabled": False}, {"next_run_at": None}, {"next_run_at": "later"}]
)
def test_a_schedule_that_changed_since_it_was_read_is_not_advanced(change):
    row = firing.schedule()
    at = firing.overdue(row)
    if change.get("next_run_at") == "later":
        change = {"next_run_at": at + timedelta(seconds=1)}
    Schedule.objects.filter(pk=row.pk).update(**change)
    read = record.Advance(row.pk, at, 1, None, None, "", 0)
    assert record.advance([read], firing.leader().guard()) == set()


CODES_IN_CODE = {"reason_code", "code"}


def written_codes():
    """Every literal that code of this app gives as the reason of a fire or a delivery."""
    found = set()
    files = [*(ROOT / "schedules" / "fires").glob("*.py"), ROOT / "schedules" / "windows.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "reason_code":
                found |= texts(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in ("refuse", "drop") and len(node.args) > 1:
                    found |= texts(node.args[1])
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "refuse",
                "_break",
            ):
                found |= {text for item in node.args for text in texts(item)}
    return found


def texts(node):
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


@rule("interfaces H-2", "architecture D7")
def test_every_reason_that_is_written_has_its_sentence():
    found = written_codes()
    assert {"overlap", "misfire", "target_missing", "zone_unknown", "depth_exceeded"} <= found
    assert found - {""} <= reasons.codes()
    for code in sentences.FIRE_REASONS:
        assert "%" not in reasons.render(code, dict.fromkeys(SAMPLE, "x")), code


SAMPLE = [
    "run",
    "since",
    "late",
    "grace",
    "count",
    "from",
    "to",
    "by",
    "note",
    "error",
    "zone",
    "exc",
    "catch_up",
    "target",
    "why",
    "pointer",
    "msg",
    "max",
    "path",
    "ref",
    "attempt",
    "kind",
    "subject",
]


@rule("interfaces H-2")
@pytest.mark.django_db
def test_a_rendered_reason_names_what_the_row_stores():
    row = firing.schedule()
    fires.run_now(row.pk, actor="ana", via="api")
    skipped = fires.run_now(row.pk, actor="ana", via="api")
    said = reasons.render(skipped.reason_code, skipped.reason_params)
    assert skipped.reason_params["run"] in said


def name_of(function):
    room, name = function.rsplit(".", 1)
    return {"fires": fires, "outbox": outbox}[room], name


@rule("style Database")
def test_every_edge_of_the_state_tables_has_its_function():
    tables = (states.FIRE_TRANSITIONS, states.EVENT_TRANSITIONS, states.DELIVERY_TRANSITIONS)
    for edge in (edge for table in tables for edge in table):
        room, name = name_of(edge.function)
        assert hasattr(room, name) is (edge.issue is None), edge


@rule("interfaces D-1")
def test_an_unknown_setting_is_an_error_with_the_nearest_name(settings):
    assert checks.keys() == []
    settings.SCHEDULES = {"BACH": 5, "TICK_S": 0}
    unknown, unusable = checks.keys()
    assert (unknown.id, unusable.id) == ("schedules.E004", "schedules.E004")
    assert "BATCH" in unknown.hint
    assert "TICK_S" in unusable.msg


@rule("interfaces D-4")
def test_missing_zones_are_a_warning(monkeypatch):
    assert checks.zones() == []
    monkeypatch.setattr(checks, "PROBE_ZONES", ("Mars/Olympus",))
    [found] = checks.zones()
    assert found.id == "schedules.W002"


@rule("interfaces D-4", "schedules S8", "settled 32")
@pytest.mark.django_db
def test_broken_schedules_and_targets_that_cannot_start_are_named(settings):
    assert checks.stored(databases=["default"]) == []
    row = firing.schedule("lost")
    Schedule.objects.filter(pk=row.pk).update(target="gone.away", broken_code="cron_invalid")
    assert {item.id for item in checks.stored(databases=["default"])} == {
        "schedules.W001",
        "schedules.W004",
    }
    assert checks.stored(databases=[]) == []


@rule("settled 32")
@pytest.mark.django_db
def test_a_task_of_the_immediate_backend_is_refused_as_a_target(settings, monkeypatch):
    task = targets.get("project.tasks.tidy")
    assert targets.refusal(task) == ""

    class ImmediateBackend:
        pass

    monkeypatch.setattr(targets, "task_backends", {"default": ImmediateBackend()})
    assert "inside enqueue" in targets.refusal(task)
    row = firing.schedule()
    Schedule.objects.filter(pk=row.pk).update(target="project.tasks.tidy")
    assert {item.id for item in checks.stored(databases=["default"])} == {"schedules.E003"}
    firing.overdue(row)
    fires.fire_batch(firing.leader().guard())
    assert ScheduleFire.objects.get().outcome == "failed_to_start"


@rule("interfaces D-4")
def test_a_target_module_that_cannot_be_imported_or_takes_a_name_twice_is_an_error(monkeypatch):
    failures = {"a.schedule_targets": ImportError("no"), "b": targets.DuplicateTarget("twice")}
    monkeypatch.setattr(targets, "_failures", failures)
    assert [item.id for item in checks.target_modules()] == ["schedules.E001", "schedules.E002"]


def test_the_checks_of_the_project_pass():
    call_command("check", fail_level="WARNING")


@rule("schedules S5")
@pytest.mark.django_db
def test_nothing_is_left_waiting_by_a_statement_that_a_stale_leader_tried():
    guard = firing.leader().guard()
    older_epoch(guard)
    route(guard)
    assert TriggerEvent.objects.get().state == "pending"
    assert not TriggerDelivery.objects.exists()
