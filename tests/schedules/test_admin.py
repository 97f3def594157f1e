"""Schedules in the admin: lists, the form under the version, and its three actions."""

import datetime as dt
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from coordination.database import dbnow
from schedules import fires
from schedules.models import (
    Schedule,
    ScheduleChange,
    ScheduleFire,
    TriggerDelivery,
    TriggerEvent,
)
from schedules.states import FireKind, FireOutcome
from tests.support.people import user
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

LIST = "admin:roundtable_schedules_schedule_changelist"
ADD = "admin:roundtable_schedules_schedule_add"
PERMISSIONS = [
    f"roundtable_schedules.{name}"
    for name in (
        "view_schedule", "add_schedule", "change_schedule", "delete_schedule", "run_schedule",
        "pause_schedule", "view_schedulefire",
    )
]  # fmt: skip
TARGET = "project.tasks.tidy"
FORM = {
    "name": "Nightly",
    "key": "reports/nightly",
    "tags": "reports, night",
    "kind": "cron",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "interval_s": "",
    "event_kind": "",
    "event_subject": "",
    "event_conditions": "",
    "debounce_s": "60",
    "jitter_s": "0",
    "target": TARGET,
    "inputs": "{}",
    "priority": "0",
    "overlap": "skip",
    "misfire_grace_s": "600",
}


@pytest.fixture
def author(client):
    client.force_login(user("ana", *PERMISSIONS))
    return client


def make(key="reports/nightly", **fields):
    return fires.create(
        {
            "key": key,
            "name": "Nightly",
            "kind": "cron",
            "cron": "30 2 * * *",
            "timezone": "Europe/Berlin",
            "target": TARGET,
            **fields,
        },
        actor="setup",
        via="command",
    )


def page_of(row):
    return reverse("admin:roundtable_schedules_schedule_change", args=[row.pk])


def typed(client, row, **changes):
    """What the browser sends when a person opens the form and changes something."""
    text = client.get(page_of(row)).content.decode()
    hidden = dict(
        re.findall(r'<input type="hidden" name="(seen_version|original)" value="([^"]*)"', text)
    )
    kept = {name: value for name, value in FORM.items() if name not in ("key", "kind")}
    kept |= {"tags": "", "name": row.name, "cron": row.cron}
    return {**kept, **hidden, **changes}


def act(client, action, *chosen, **more):
    return client.post(
        reverse(LIST),
        {"action": action, "_selected_action": [row.pk for row in chosen], **more},
        follow=True,
    )


@rule("interfaces S-4", "schedules S10")
def test_adding_goes_through_the_verb_and_leaves_both_audit_entries(author):
    answer = author.post(reverse(ADD), FORM, follow=True)
    assert answer.status_code == 200
    row = Schedule.objects.get(key="reports/nightly")
    assert (row.tags, row.version, row.created_by) == (["reports", "night"], 1, "ana")
    assert row.next_run_at > dbnow()
    assert ScheduleChange.objects.get().via == "admin"
    assert LogEntry.objects.get().object_id == str(row.pk)


@rule("interfaces A-9", "schedules P8")
@pytest.mark.parametrize(
    ("field", "value"),
    [("cron", "30 24 * * *"), ("timezone", "Mars/Base"), ("target", "no.such.task"),
     ("key", "No Slug"), ("inputs", "[1]"), ("inputs", '{"nosuch": 1}'), ("cron", "* * 30 2 *")],
)  # fmt: skip
def test_what_the_verb_refuses_stands_beside_its_field_and_nothing_is_lost(author, field, value):
    answer = author.post(reverse(ADD), {**FORM, field: value})
    form = answer.context["adminform"].form
    assert answer.status_code == 200
    assert form.errors.get(field), form.errors
    text = answer.content.decode()
    assert "Nightly" in text
    assert "reports, night" in text
    assert not Schedule.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_taken_key_is_refused_beside_the_key(author):
    make()
    answer = author.post(reverse(ADD), FORM)
    assert answer.context["adminform"].form.errors.get("key")
    assert Schedule.objects.count() == 1


@rule("interfaces G-9", "schedules S10")
def test_an_edit_sends_only_what_was_changed_and_raises_the_version(author):
    row = make()
    author.post(page_of(row), typed(author, row, name="Every night"))
    row.refresh_from_db()
    assert (row.name, row.version, row.updated_by) == ("Every night", 2, "ana")
    assert list(ScheduleChange.objects.order_by("-id")[0].diff) == ["name"]


@rule("settled 9")
def test_an_edit_of_the_expression_moves_the_next_instant(author):
    row = make()
    author.post(page_of(row), typed(author, row, cron="0 5 * * *"))
    before = row.next_run_at
    row.refresh_from_db()
    assert row.next_run_at != before
    assert row.next_run_at > dbnow()


def test_key_and_kind_are_not_in_the_form_of_an_existing_schedule(author):
    row = make()
    form = author.get(page_of(row)).context["adminform"].form
    assert "key" not in form.fields
    assert "kind" not in form.fields


@rule("interfaces G-9")
def test_a_conflict_loses_nothing_and_needs_a_second_click(author):
    row = make()
    mine = typed(author, row, name="Mine", cron="0 6 * * *")
    fires.edit(row.pk, {"name": "Theirs", "priority": 5}, version=1, actor="bob", via="api")

    answer = author.post(page_of(row), mine)
    conflict = answer.context["conflict"]
    text = answer.content.decode()
    assert "bob saved version 2" in text
    table = {line["label"]: (line["yours"], line["now"], line["original"])
             for line in conflict["rows"]}  # fmt: skip
    assert table["Name"] == ("Mine", "Theirs", "Nightly")
    assert re.search(r"<li><time[^>]*>.*?02:30:00", text), "what is stored, not what was typed"
    assert "04:00:00" not in text
    assert table["Cron expression"] == ("0 6 * * *", "30 2 * * *", "30 2 * * *")
    assert 'value="Mine"' in text
    row.refresh_from_db()
    assert (row.name, row.version) == ("Theirs", 2)

    again = author.post(page_of(row), mine)
    assert again.context["conflict"]["current"] == 2

    author.post(page_of(row), {**mine, "_overwrite": "2"})
    row.refresh_from_db()
    assert (row.name, row.cron, row.version) == ("Mine", "0 6 * * *", 3)
    assert row.priority == 5, "a field that was not touched keeps what it is now"


@rule("interfaces G-9")
def test_overwriting_a_version_that_is_old_again_is_a_conflict_again(author):
    row = make()
    mine = typed(author, row, name="Mine")
    fires.edit(row.pk, {"name": "Theirs"}, version=1, actor="bob", via="api")
    fires.edit(row.pk, {"name": "Theirs too"}, version=2, actor="bob", via="api")
    answer = author.post(page_of(row), {**mine, "_overwrite": "2"})
    assert answer.context["conflict"]["current"] == 3
    row.refresh_from_db()
    assert row.name == "Theirs too"


def test_original_values_that_were_tampered_with_are_not_believed(author):
    row = make()
    sent = typed(author, row, name="Mine")
    author.post(page_of(row), {**sent, "original": sent["original"] + "x"})
    row.refresh_from_db()
    assert row.name == "Mine"


@rule("interfaces R-9", "interfaces F7")
def test_a_view_only_user_reads_everything_and_changes_nothing(client):
    client.force_login(user("vic", "roundtable_schedules.view_schedule"))
    row = make()
    assert client.get(page_of(row)).status_code == 200
    text = client.get(reverse(LIST)).content.decode()
    assert '<option value="pause"' not in text
    assert client.post(page_of(row), {"name": "x"}).status_code == 403
    for action in ("pause", "resume", "run_now", "delete_selected"):
        act(client, action, row, confirmed="yes", post="yes")
    row.refresh_from_db()
    assert (row.version, row.enabled) == (1, True)
    assert not ScheduleFire.objects.exists()
    assert not LogEntry.objects.exists()


@rule("schedules S6", "interfaces G-3", "interfaces S-15")
def test_pause_asks_for_a_note_first_and_resume_takes_it_back(author):
    row = make()
    asked = act(author, "pause", row)
    assert "reports/nightly" in asked.content.decode()
    row.refresh_from_db()
    assert row.enabled

    act(author, "pause", row, confirmed="yes", note="vendor outage")
    row.refresh_from_db()
    assert (row.enabled, row.pause_note, row.paused_by) == (False, "vendor outage", "ana")
    assert "vendor outage" in author.get(reverse(LIST)).content.decode()

    act(author, "resume", row)
    row.refresh_from_db()
    assert row.enabled
    assert [entry.get_change_message() for entry in LogEntry.objects.all()]
    assert LogEntry.objects.count() == 2


def test_an_action_that_the_state_forbids_says_why_and_logs_nothing(author):
    row = make()
    text = act(author, "resume", row).content.decode()
    assert "Schedule reports/nightly: The schedule is not paused." in text
    assert not LogEntry.objects.exists()


@rule("schedules S7", "interfaces S-14")
def test_run_now_asks_and_then_records_a_manual_fire_with_its_actor(author):
    row = make()
    assert "Start these schedules now?" in act(author, "run_now", row).content.decode()
    assert not ScheduleFire.objects.exists()
    act(author, "run_now", row, confirmed="yes")
    fire = ScheduleFire.objects.get()
    assert (fire.kind, fire.outcome, fire.actor_name) == ("manual", "started", "ana")
    before = row.next_run_at
    row.refresh_from_db()
    assert row.next_run_at == before
    assert str(fire.pk) in LogEntry.objects.get().change_message


@rule("interfaces S-3")
def test_run_now_refuses_more_than_twenty_at_a_time(author):
    chosen = [make(f"k/{number}") for number in range(21)]
    text = act(author, "run_now", *chosen, confirmed="yes").content.decode()
    assert "at most 20" in text
    assert not ScheduleFire.objects.exists()


@rule("schedules S10")
def test_deleting_keeps_the_fires_and_the_changes(author):
    row = make()
    act(author, "run_now", row, confirmed="yes")
    author.post(page_of(row).replace("change", "delete"), {"post": "yes"})
    assert not Schedule.objects.exists()
    assert ScheduleFire.objects.get().schedule_key == "reports/nightly"
    assert ScheduleChange.objects.filter(verb="delete").exists()

    other = make("b")
    act(author, "delete_selected", other, post="yes")
    assert not Schedule.objects.exists()
    assert ScheduleChange.objects.filter(verb="delete").count() == 2


@rule("interfaces S-7")
def test_the_page_shows_the_words_and_the_next_five_instants(author):
    row = make()
    text = author.get(page_of(row)).content.decode()
    assert "At 02:30 every day" in text
    shown = re.findall(r"<li><time[^>]*>(.*?)</time></li>", text)
    assert len(shown) == 5
    assert all("02:30:00 CE" in line for line in shown)
    assert "Fixed" in text


@rule("interfaces G-11")
def test_two_hundred_corrupted_schedules_still_make_a_page(author):
    bad = [
        {"timezone": "No/Where"}, {"cron": "99 * * * *"}, {"cron": ""}, {"target": "gone.away"},
        {"kind": "interval", "interval_s": None}, {"kind": "once", "once_at": None},
        {"last_outcome": "no such", "last_fire_at": None}, {"tags": {"no": "list"}},
        {"broken_code": "no_such_code", "broken_params": []}, {"inputs": [1]},
    ]  # fmt: skip
    for number in range(200):
        row = make(f"k/{number}")
        Schedule.objects.filter(pk=row.pk).update(**bad[number % len(bad)])
    answer = author.get(reverse(LIST))
    assert answer.status_code == 200
    assert "broken" in answer.content.decode()
    for row in Schedule.objects.order_by("key")[:12]:
        assert author.get(page_of(row)).status_code == 200


@rule("interfaces G-2")
def test_a_list_of_a_hundred_schedules_takes_at_most_nine_queries(
    author, django_assert_max_num_queries
):
    for number in range(60):
        make(f"k/{number}")
    row = make("last")
    with django_assert_max_num_queries(9):
        author.get(reverse(LIST))
    author.get(page_of(row))
    with django_assert_max_num_queries(8):
        author.get(page_of(row))


def a_fire(row, outcome, **values):
    now = dbnow()
    return ScheduleFire.objects.create(
        schedule=row, schedule_key=row.key, outcome=outcome, fired_at=now,
        **{"fire_at": now, "kind": FireKind.SCHEDULED, **values},
    )  # fmt: skip


@rule("interfaces H-1", "interfaces H-2", "interfaces F12")
def test_fires_give_their_reason_in_the_language_of_the_reader(client):
    client.force_login(user("root", superuser=True))
    a_fire(make(), FireOutcome.SKIPPED_OVERLAP, reason_code="overlap",
           reason_params={"run": "0190", "since": "2026-03-29T01:00:00Z"})  # fmt: skip
    url = reverse("admin:roundtable_schedules_schedulefire_changelist")
    english = client.get(url).content.decode()
    assert "Skipped: run 0190 has been unfinished since" in english
    chinese = client.get(url, headers={"Accept-Language": "zh-hans"}).content.decode()
    assert "Skipped: run" not in chinese
    assert "0190" in chinese


@pytest.mark.parametrize("outcome", FireOutcome)
def test_every_outcome_has_its_badge(client, outcome):
    client.force_login(user("root", superuser=True))
    fire = a_fire(make(), outcome, span_from=dbnow(), span_to=dbnow(), n_instants=3)
    text = client.get(
        reverse("admin:roundtable_schedules_schedulefire_change", args=[fire.pk])
    ).content.decode()
    assert f"</span> {outcome.label}</span>" in text


@rule("interfaces F9", "interfaces G-2")
def test_the_history_takes_at_most_eight_queries(client, django_assert_max_num_queries):
    client.force_login(user("root", superuser=True))
    row = make()
    for number in range(60):
        a_fire(row, FireOutcome.FINISHED, fire_at=dbnow() + dt.timedelta(seconds=number))
    url = reverse("admin:roundtable_schedules_schedulefire_changelist")
    client.get(url)
    with django_assert_max_num_queries(8):
        client.get(url)


def test_events_deliveries_and_changes_have_lists_and_pages(client):
    client.force_login(user("root", superuser=True))
    row, now = make(), dbnow()
    event = TriggerEvent.objects.create(
        kind="dataset.version", subject="prices", data={"version": 3}, occurred_at=now
    )
    TriggerDelivery.objects.create(
        event=event, schedule=row, schedule_key=row.key, occurred_at=now, created_at=now
    )
    for model in (TriggerEvent, TriggerDelivery, ScheduleChange):
        name = f"admin:{model._meta.label_lower.replace('.', '_')}"
        assert client.get(reverse(f"{name}_changelist")).status_code == 200
        page = client.get(reverse(f"{name}_change", args=[model.objects.first().pk]))
        assert page.status_code == 200
        assert client.get(reverse(f"{name}_changelist") + "add/").status_code == 403


@rule("interfaces G-10")
def test_names_and_notes_of_people_are_text_and_never_markup(author):
    row = make(name="<script>alert(1)</script>")
    fires.pause(row.pk, note="<img src=x onerror=alert(1)>", actor="<b>bob</b>", via="api")
    for url in (reverse(LIST), page_of(row)):
        text = author.get(url).content.decode()
        for markup in ("<script>alert", "<img src=x", "<b>bob"):
            assert markup not in text


@rule("interfaces F7", "interfaces G-8")
@pytest.mark.parametrize(("action", "guard"), [
    ("pause", "has_pause_permission"), ("run_now", "has_run_permission"),
])  # fmt: skip
def test_the_permission_is_asked_again_for_each_schedule(author, monkeypatch, action, guard):
    allowed, refused = make("a"), make("b")
    monkeypatch.setattr(
        "schedules.admin.ScheduleAdmin." + guard,
        lambda self, request, obj=None: obj is None or obj.key == "a",
    )
    act(author, action, allowed, refused, confirmed="yes")
    changed = ScheduleChange.objects.exclude(verb="create").values_list("schedule_key", flat=True)
    assert list(changed) == ["a"]
    assert LogEntry.objects.get().object_id == str(allowed.pk)


@rule("settled 30")
def test_what_one_schedule_did_stays_done_when_the_next_one_refuses(author):
    on, off = make("a"), make("b")
    fires.pause(off.pk, actor="bob", via="api")
    text = act(author, "pause", on, off, confirmed="yes").content.decode()
    on.refresh_from_db()
    assert not on.enabled
    assert "1 schedule is paused." in text
    assert "Schedule b: The schedule is paused already." in text
