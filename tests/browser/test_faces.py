"""Every page of ours in a real browser: the strictest policy, accessibility, and life."""

import datetime as dt

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from coordination.database import dbnow
from coordination.tasks.models import TaskRun
from roundtable_jobs.models import RoundtableCall, RoundtableDraft, RoundtableJob, RoundtableTurn
from schedules import fires
from schedules.models import ScheduleFire, TriggerDelivery, TriggerEvent
from tests.support import rows
from tests.support.browser import log_in, violations
from tests.support.people import user
from tests.support.rules import rule

pytestmark = pytest.mark.django_db(transaction=True)

# What axe finds on the stock admin itself (F2); nothing beyond it is accepted.
BASELINE = {"page-has-heading-one", "link-in-text-block", "target-size"}
LISTS = [
    "roundtable_coordination_worker", "roundtable_coordination_lease",
    "roundtable_coordination_leasehistory", "roundtable_coordination_jobattempt",
    "roundtable_tasks_taskrun", "roundtable_schedules_schedule",
    "roundtable_schedules_schedulefire", "roundtable_schedules_schedulechange",
    "roundtable_schedules_triggerevent", "roundtable_schedules_triggerdelivery",
    "roundtable_jobs_roundtablejob", "roundtable_jobs_roundtableturn",
    "roundtable_jobs_roundtablecall", "roundtable_jobs_roundtabledraft",
]  # fmt: skip


LOOKED_AT = [
    "roundtable_coordination_worker", "roundtable_schedules_schedule",
    "roundtable_schedules_schedulefire", "roundtable_jobs_roundtablejob",
]  # fmt: skip


@pytest.fixture
def everything():
    """One row of everything that has a page."""
    root = user("root", superuser=True)
    now = dbnow()
    rows.worker()
    rows.lease()
    rows.history(1)
    job = rows.job(TaskRun, kwargs={"day": 1}, error={"message": "no"})
    rows.attempt(1, job_id=job.pk)
    row = schedule()
    fire = ScheduleFire.objects.create(
        schedule=row, schedule_key=row.key, fire_at=now, fired_at=now, kind="scheduled",
        outcome="skipped_overlap", reason_code="overlap", reason_params={"run": "7", "since": "8"},
    )  # fmt: skip
    event = TriggerEvent.objects.create(
        kind="dataset.version", subject="prices", data={"version": 3}, occurred_at=now
    )
    TriggerDelivery.objects.create(
        event=event, schedule=row, schedule_key=row.key, occurred_at=now, created_at=now, fire=fire
    )
    table = rows.job(RoundtableJob, kind="roundtable", title="The archive", topic="Move?",
                     user=root, consensus_percentage=87)  # fmt: skip
    RoundtableTurn.objects.create(
        job=table, step=1, ordinal=0, round=1, kind="statement", agent_id="nora",
        agent_name="Nora", role="seat", content="I think so.", attempt=1, committed_at=now,
    )  # fmt: skip
    RoundtableCall.objects.create(job=table, step=1, ordinal=0, try_no=1, attempt=1, started_at=now)
    RoundtableDraft.objects.create(user=root, created_at=now, updated_at=now)


def schedule(key="reports/nightly"):
    return fires.create(
        {"key": key, "name": "Nightly", "kind": "cron", "cron": "30 2 * * *",
         "timezone": "Europe/Berlin", "target": "project.tasks.tidy"},
        actor="setup", via="command",
    )  # fmt: skip


def beyond_the_baseline(page):
    """What axe finds that the stock admin has not; the filter links are ours to pad (F2)."""
    return [
        (name, where)
        for name, where in violations(page)
        if name not in BASELINE or (name == "target-size" and "changelist-filter" in str(where))
    ]


def enter(context, live_server, name):
    """Sign a user in without the pages of the form."""
    client = Client()
    client.force_login(get_user_model().objects.get(username=name))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])


@rule("interfaces F1", "interfaces A-1", "interfaces G-1")
def test_every_list_and_page_is_quiet_under_the_strictest_policy(page, everything):
    log_in(page, "root", "secret")
    for name in LISTS:
        page.goto(reverse(f"admin:{name}_changelist"))
        first = page.query_selector("#result_list tbody tr a")
        assert first, name
        page.goto(first.get_attribute("href"))
        assert page.query_selector("#content h1"), name
    page.goto(reverse("admin:roundtable_schedules_schedule_add"))
    assert page.problems == []


@rule("interfaces A-1", "interfaces F2", "interfaces A-7")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_beyond_what_the_stock_admin_has(page, live_server, everything, scheme):
    page.emulate_media(color_scheme=scheme)
    enter(page.context, live_server, "root")
    for name in LOOKED_AT if scheme == "light" else LOOKED_AT[:2]:
        page.goto(reverse(f"admin:{name}_changelist"))
        assert beyond_the_baseline(page) == [], name
        page.goto(page.query_selector("#result_list tbody tr a").get_attribute("href"))
        assert beyond_the_baseline(page) == [], name


@rule("interfaces G-9", "interfaces G-3")
@pytest.mark.parametrize("scripts", [True, False])
def test_two_people_edit_one_schedule_and_neither_loses_a_word(browser, live_server, scripts):
    user("ana", superuser=True)
    user("bob", superuser=True)
    row = schedule()
    url = reverse("admin:roundtable_schedules_schedule_change", args=[row.pk])
    pages = []
    for name in ("ana", "bob"):
        context = browser.new_context(base_url=live_server.url, java_script_enabled=scripts)
        context.set_default_timeout(15_000)
        opened = context.new_page()
        enter(context, live_server, name)
        opened.goto(url)
        pages.append(opened)
    ana, bob = pages
    ana.fill("#id_cron", "0 6 * * *")
    bob.fill("#id_name", "Bob's name")
    bob.click("input[name=_save]")
    bob.wait_for_url(lambda address: "change" not in address)
    ana.click("input[name=_save]")
    ana.wait_for_selector(".ops-conflict")
    assert "bob saved version 2" in ana.inner_text(".ops-conflict")
    assert ana.input_value("#id_cron") == "0 6 * * *"
    if scripts:
        assert beyond_the_baseline(ana) == []
    ana.click("button[name=_overwrite]")
    ana.wait_for_url(lambda address: "change" not in address)
    row.refresh_from_db()
    assert (row.cron, row.name, row.version) == ("0 6 * * *", "Bob's name", 3)


@rule("interfaces G-3", "interfaces S-15")
def test_pausing_asks_for_a_note_on_a_page_that_is_accessible(page, live_server):
    user("root", superuser=True)
    row = schedule()
    enter(page.context, live_server, "root")
    page.goto(reverse("admin:roundtable_schedules_schedule_changelist"))
    page.check(f"input[name=_selected_action][value='{row.pk}']")
    page.select_option("select[name=action]", "pause")
    page.click("button[name=index]")
    page.wait_for_selector("#id_note")
    assert beyond_the_baseline(page) == []
    page.fill("#id_note", "vendor outage")
    page.click("input[type=submit]")
    page.wait_for_selector("#result_list")
    row.refresh_from_db()
    assert (row.enabled, row.pause_note) == (False, "vendor outage")
    assert "vendor outage" in page.inner_text("#result_list")


@rule("interfaces F7", "interfaces G-3")
@pytest.mark.parametrize("model", [TaskRun, RoundtableJob])
def test_a_job_that_ended_badly_runs_again_from_its_own_page(page, live_server, model):
    user("root", superuser=True)
    job = rows.job(model, status="quarantined", finished_at=dbnow())
    enter(page.context, live_server, "root")
    opened = reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_change", args=[job.pk])
    page.goto(opened)
    assert "It does not run again by itself." in page.inner_text("#content")
    assert page.problems == []
    assert beyond_the_baseline(page) == []
    page.click(".ops-resume button")
    page.wait_for_selector(".messagelist:has-text('1 runs again.')")
    assert page.url == live_server.url + opened
    assert page.locator(".ops-resume").count() == 0
    job.refresh_from_db()
    assert job.status == "queued"


def event(subject):
    TriggerEvent.objects.create(
        kind="dataset.version", subject=subject, data={}, occurred_at=dbnow()
    )


@rule("interfaces G-4", "interfaces 2.e")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_landing_page_shows_each_new_line_without_a_reload(page, scheme):
    page.emulate_media(color_scheme=scheme)
    event("prices")
    page.goto("/")
    page.evaluate("window.kept = true")
    assert "event about prices" in page.inner_text(".lines")
    assert violations(page) == []
    page.reload()
    event("suppliers")
    page.wait_for_selector(".lines li:has-text('event about suppliers')")
    assert page.evaluate("document.querySelectorAll('.lines .ops-new').length") <= 1


@rule("interfaces G-4")
def test_the_page_says_since_when_it_gets_no_answer_and_recovers(page):
    page.goto("/")
    page.context.set_offline(True)
    page.wait_for_selector("#live-note:not([hidden])")
    assert "Not updating since" in page.inner_text("#live-note")
    page.context.set_offline(False)
    page.wait_for_selector("#live-note", state="hidden")


@rule("interfaces G-3")
def test_the_landing_page_is_whole_without_script(browser, live_server):
    event("prices")
    context = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    opened = context.new_page()
    opened.goto("/")
    assert "event about prices" in opened.inner_text(".lines")
    event("suppliers")
    opened.click("text=Reload")
    opened.wait_for_selector(".lines li:has-text('event about suppliers')")
    context.close()


def test_instants_in_lists_are_those_of_the_database(page, live_server):
    user("root", superuser=True)
    rows.worker(left_s=7)
    enter(page.context, live_server, "root")
    page.goto(reverse("admin:roundtable_coordination_worker_changelist"))
    shown = dt.datetime.fromisoformat(page.get_attribute(".field-lease time", "datetime"))
    assert abs((shown - dbnow()).total_seconds()) < 10


@rule("interfaces 2.e", "interfaces R-9")
def test_the_owner_without_staff_rights_follows_and_stops_their_roundtable(page, live_server):
    ana = user("ana", staff=False)
    table = rows.job(RoundtableJob, kind="roundtable", title="The archive", topic="Move?", user=ana)
    enter(page.context, live_server, "ana")
    page.goto("/my/")
    page.wait_for_selector("#title:has-text('The archive')")
    for number in (1, 2):
        RoundtableTurn.objects.create(
            job=table, step=number, ordinal=0, round=1, kind="statement", agent_id="nora",
            agent_name="Nora", role="seat", content=f"<b>thought</b> {number}", attempt=1,
            committed_at=dbnow(),
        )  # fmt: skip
        table.events.create(seq=number, kind="turn", payload={"turn": f"{number}.0"}, at=dbnow())
        page.wait_for_selector(f"#turns li:has-text('<b>thought</b> {number}')")
    assert page.locator("#turns li").count() == 2
    assert violations(page) == []
    page.click("#cancel")
    page.wait_for_selector("#resume:not([hidden])")
    table.refresh_from_db()
    assert table.status == "cancelled"
    assert page.problems == []
    page.goto("/admin/")
    assert "/login/" in page.url
