"""The admin's lists of workers, leases, history and attempts."""

import datetime as dt
import re

import pytest
from django.contrib import admin
from django.db import connection, models
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from coordination import admin_base, marks
from coordination.database import dbnow
from coordination.models import JobAttempt, Lease, LeaseHistory, Worker
from tests.support import rows
from tests.support.people import user
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

MODELS = (Worker, Lease, LeaseHistory, JobAttempt)


@pytest.fixture
def staff(client):
    client.force_login(user("root", superuser=True))
    return client


def changelist(model):
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")


def page_of(row):
    return reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_change", args=[row.pk])


@pytest.fixture
def cluster():
    rows.worker()
    rows.worker("web-2:8:def", left_s=-3)
    rows.worker("web-3:9:fed", state="lost", left_s=-90)
    rows.lease()
    rows.history(1)
    rows.history(2, cause="expired", gap_s=16.2)
    rows.attempt()


@pytest.mark.parametrize("model", MODELS)
def test_every_list_and_page_opens_for_a_superuser(staff, cluster, model):
    assert staff.get(changelist(model)).status_code == 200
    for row in model.objects.all():
        assert staff.get(page_of(row)).status_code == 200


@rule("interfaces G-7")
def test_the_list_of_workers_says_who_leads_who_is_late_and_who_is_gone(staff, cluster):
    rows.worker("left", state="left", left_s=-90)
    rows.worker("fenced", state="lost", left_s=-90, end_cause="fenced")
    text = staff.get(changelist(Worker)).content.decode()
    badges = re.findall(r'ops-(\w+)"><span aria-hidden="true">(.)</span> (\w+)</span>', text)
    words = {word for _role, _glyph, word in badges}
    assert {"leading", "late", "gone", "fenced"} <= words
    assert "standby" not in words
    # A worker that was lost is not the calm grey of one that left.
    gone = {(role, glyph) for role, glyph, word in badges if word == "gone"}
    assert gone == {("idle", "○"), ("failed", "✕")}


@rule("interfaces G-2")
@pytest.mark.parametrize("asked", [{}, {"state": "lost"}])
def test_the_leader_and_the_living_stand_before_any_number_of_crashes(staff, asked):
    now = dbnow()
    for number in range(60):
        ended = now - dt.timedelta(seconds=number)
        rows.worker(f"crashed-{number:02}", state="lost", left_s=-90, ended_at=ended)
    rows.worker("b-draining", state="draining")
    rows.worker("a-joining", state="joining")
    rows.worker("z-leader")
    rows.lease("z-leader")
    Worker.objects.exclude(state="lost").update(started_at=now - dt.timedelta(days=3))
    shown = [row.pk for row in staff.get(changelist(Worker), asked).context["cl"].result_list]
    here = [] if asked else ["z-leader", "b-draining", "a-joining"]
    assert shown[: len(here)] == here
    assert shown[len(here) :] == [f"crashed-{number:02}" for number in range(50 - len(here))]


@rule("interfaces F9", "interfaces G-2")
def test_a_list_of_thousands_of_ended_workers_is_one_pass_and_one_query_of_leases(staff, engine):
    rows.lease("w0")
    Worker.objects.bulk_create(
        Worker(id=f"w{number}", host="h", pid=1, started_at=dbnow(), heartbeat_at=dbnow(),
               lease_until=dbnow(), ended_at=dbnow(), state="lost")
        for number in range(200)
    )  # fmt: skip
    with CaptureQueriesContext(connection) as captured:
        staff.get(changelist(Worker))
    [listed] = [
        query["sql"] for query in captured.captured_queries
        if "ORDER BY CASE" in query["sql"] and "LIMIT 50" in query["sql"]
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if engine == 'sqlite' else ''}{listed}")
        plan = "\n".join(str(line[-1]) for line in cursor.fetchall())
    scanned = re.findall(r"(?:Seq Scan on|SCAN) (\w+)", plan)
    assert scanned.count("cluster_workers") == 1, plan


@rule("architecture D7", "coordination TK1")
@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_how_a_worker_ended_is_told_in_the_readers_language(staff, settings, language):
    settings.LANGUAGE_CODE = language
    row = rows.worker(state="lost", end_evidence="E1", end_cause="supervisor saw exit -9")
    taken = rows.attempt(1, end="taken_over", evidence="E1")
    rows.history(2, cause="proved dead", from_owner=row.pk, evidence="E1", gap_s=0.02)
    words = {
        "en": "its death was proved: supervisor saw exit -9",
        "zh-hans": "已证实死亡：监管进程看到退出码 -9",
    }
    pages = (changelist(Worker), page_of(row), changelist(LeaseHistory), page_of(taken))
    for url in (*pages, page_of(LeaseHistory.objects.get())):
        text = staff.get(url).content.decode()
        assert words[language] in text, url
        assert language == "en" or "supervisor saw" not in text


def test_a_cause_is_told_only_of_the_end_that_the_evidence_names(staff):
    row = rows.worker(state="left", end_evidence="E0", end_cause="stopped")
    rows.history(1, cause="expired", from_owner=row.pk, gap_s=70)
    taken = rows.attempt(1, end="taken_over", evidence="E3")
    assert "stopped in order" not in staff.get(changelist(LeaseHistory)).content.decode()
    text = staff.get(page_of(taken)).content.decode()
    assert "it was silent for too long" in text
    assert "stopped in order" not in text


@rule("coordination LL10")
def test_a_gap_below_a_minute_is_told_with_hundredths_and_from_when_it_counts(staff):
    for epoch, gap_s in enumerate((0.02, 0.3, 16.204, 59, 75.5, None), 1):
        rows.history(epoch, cause="released", gap_s=gap_s)
    text = staff.get(changelist(LeaseHistory)).content.decode()
    shown = re.findall(r'field-gap[^"]*">(?:<span class="ops-length">)?([^<]*)<', text)
    assert shown == ["-", "1 min 15 s", "59.00 s", "16.20 s", "0.30 s", "0.02 s"]
    assert "counts from the release, or from the last renewal of the holder before" in text


@rule("interfaces C-1")
def test_the_list_of_workers_is_headed_by_the_same_verdict_as_everywhere(staff, cluster):
    from coordination import status

    text = staff.get(changelist(Worker)).content.decode()
    beginning = status.verdict().text().split(",")[0]
    assert 'class="ops-verdict"' in text
    assert marks.format_html("{}", beginning) in text


@rule("interfaces F7", "interfaces R-9")
@pytest.mark.parametrize("model", MODELS)
def test_nobody_adds_changes_or_deletes_rows_of_the_cluster_by_hand(staff, cluster, model):
    row = model.objects.first()
    assert staff.get(changelist(model) + "add/").status_code == 403
    assert staff.post(page_of(row), {"name": "x"}).status_code == 403
    assert staff.post(page_of(row).replace("change", "delete"), {"post": "yes"}).status_code == 403
    answer = staff.post(
        changelist(model), {"action": "delete_selected", "_selected_action": [row.pk]}
    )
    assert answer.status_code in (200, 302)
    assert model.objects.filter(pk=row.pk).exists()


@rule("interfaces R-9")
def test_a_staff_user_without_the_view_permission_sees_no_list(client, cluster):
    client.force_login(user("eve"))
    assert client.get(changelist(Worker)).status_code == 403
    client.force_login(user("vic", "roundtable_coordination.view_worker"))
    assert client.get(changelist(Worker)).status_code == 200
    assert client.get(changelist(Lease)).status_code == 403


@rule("interfaces F9", "interfaces G-2")
@pytest.mark.parametrize(("model", "most"), [(Worker, 14), (LeaseHistory, 8), (JobAttempt, 8)])
def test_a_full_list_takes_a_bounded_number_of_queries(
    staff, django_assert_max_num_queries, model, most
):
    for number in range(60):
        rows.worker(f"w{number}")
        rows.history(number + 1)
        rows.attempt(number + 1)
    with django_assert_max_num_queries(most):
        staff.get(changelist(model))


@rule("interfaces F9")
def test_a_list_counts_no_further_than_the_cap(staff, django_assert_num_queries, monkeypatch):
    monkeypatch.setattr(admin_base.CappedPaginator, "cap", 3)
    for number in range(6):
        rows.attempt(number + 1)
    counted = admin_base.CappedPaginator(JobAttempt.objects.order_by("-id"), 2)
    with django_assert_num_queries(1) as captured:
        assert (counted.count, counted.capped, counted.num_pages) == (3, True, 2)
    assert "LIMIT 4" in captured.captured_queries[0]["sql"]
    assert "more than 3 rows" in staff.get(changelist(JobAttempt)).content.decode()


@rule("interfaces F9")
def test_a_short_list_is_counted_whole():
    rows.attempt()
    counted = admin_base.CappedPaginator(JobAttempt.objects.order_by("-id"), 2)
    assert (counted.count, counted.capped) == (1, False)


@rule("interfaces G-11")
def test_corrupted_rows_show_as_broken_and_the_page_still_opens(staff):
    for number in range(200):
        JobAttempt.objects.filter(pk=rows.attempt(number + 1).pk).update(
            end="no such end", owner="", error=[number], detail={"x": None}
        )
    rows.worker("w", roles={"not": 1}, kinds=7)
    Worker.objects.update(roles=7)
    answer = staff.get(changelist(JobAttempt))
    assert answer.status_code == 200
    assert answer.content.decode().count("broken") >= 50
    assert staff.get(changelist(Worker)).status_code == 200
    assert staff.get(page_of(JobAttempt.objects.first())).status_code == 200


@rule("interfaces G-10")
def test_what_rows_hold_is_text_and_never_markup(staff):
    rows.worker("<b>w</b>", info={"x": "<script>alert(1)</script>"})
    for url in (changelist(Worker), page_of(Worker.objects.get())):
        text = staff.get(url).content.decode()
        assert "<script>alert" not in text
        assert "<b>w</b>" not in text


@rule("interfaces F1", "interfaces G-1")
@pytest.mark.parametrize("model", MODELS)
def test_no_page_holds_inline_script_style_or_handlers(staff, cluster, model):
    for url in (changelist(model), page_of(model.objects.first())):
        text = staff.get(url).content.decode()
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick=" not in text
        assert all("src=" in part.split(">")[0] or "application/json" in part.split(">")[0]
                   for part in text.split("<script")[1:])  # fmt: skip


@rule("interfaces D-7")
def test_a_host_can_keep_our_admin_classes_from_registering_themselves():
    class Other(models.Model):
        class Meta:
            app_label = "roundtable_coordination"
            managed = False

    class Conf:
        ADMIN_REGISTER = False

    admin_base.register(Other, Conf())(admin_base.OpsAdmin)
    assert not admin.site.is_registered(Other)
    from django.apps import apps

    del apps.all_models["roundtable_coordination"]["other"]
    apps.clear_cache()


@rule("settled 30")
@override_settings(ATOMIC_REQUESTS=True)
@pytest.mark.parametrize("name", ["changelist_view", "change_view", "add_view", "delete_view"])
def test_views_that_write_are_outside_the_request_transaction(name):
    registered = admin.site._registry[Worker]
    view = next(
        pattern.callback for pattern in registered.get_urls()
        if getattr(pattern.callback, "__name__", "") == name
    )  # fmt: skip
    assert view._non_atomic_requests == {"default"}


@rule("interfaces G-5", "interfaces G-6")
def test_instants_are_told_relative_to_the_database_clock_and_with_their_zone():
    now = dt.datetime(2026, 3, 29, 0, 59, tzinfo=dt.UTC)
    text = marks.moment(now + dt.timedelta(minutes=2), now, "Europe/Berlin")
    assert "<span>03:01:00 CEST</span> <span>(in 2 min 0 s)</span>" in text
    far = marks.moment(now - dt.timedelta(hours=20), now, "Europe/Berlin")
    assert "<span>2026-03-28</span> <span>05:59:00 CET</span> <span>(20 h 0 min ago)</span>" in far
    assert 'datetime="2026-03-29T03:01:00+02:00"' in text
    assert "UTC" in marks.moment(now, now, "No/Where")
    assert marks.moment(None, now) == marks.EMPTY
    assert "(" not in marks.moment(now - dt.timedelta(days=2), now)


@rule("architecture D7")
def test_an_instant_in_a_reason_is_told_in_the_zone_of_the_reader():
    from django.utils import timezone

    from coordination import reasons

    params = {"run": "0190", "since": "2026-03-29T01:00:00.006000+00:00"}
    with timezone.override("Europe/Berlin"):
        assert "since 2026-03-29 03:00:00 CEST" in reasons.render("overlap", params)
    odd = {"run": "2026-99-99T99:99:99Z", "since": 7}
    assert "2026-99-99T99:99:99Z" in reasons.render("overlap", odd)
