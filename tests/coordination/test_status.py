"""The verdict: one function, the gravest first, rendered at the edge."""

import datetime as dt
import json
import re
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.utils import timezone, translation

from coordination import status
from coordination.coordinator import reaper
from coordination.database import dbnow
from coordination.leases import Holder
from coordination.management.commands import coordination_status
from coordination.models import EvidenceClass, Lease, LeaseHistory, Worker
from coordination.status import Facts, Member, Verdict, duration_words, judge
from coordination.testing import expire, expire_worker, two_workers
from tests.support import engine as rows
from tests.support.rules import rule

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
HANGS = {"loops": {"x": {"stalled": True, "error": "KeyError"}}}
FAILS = {"loops": {"x": {"error": "KeyError"}}}


def member(name="web-2", **changed):
    values = {
        "id": f"{name}:1:x",
        "node": name,
        "state": "alive",
        "roles": ("scheduler", "dispatcher"),
        "code_version": "1",
        "schema_version": "4-a",
        "lease_left_s": 12.0,
        "heartbeat_s": 1.0,
        "info": {"loops": {"scheduler": {"age_s": 3.0, "leader_only": True}}},
        **changed,
    }
    return Member(**values)


SERVANT = member("b", roles=("dispatcher",))


def holder(left_s=12, *, owner="web-2:1:x", epoch=14):
    return Holder(
        "scheduler",
        owner,
        None if owner is None else NOW + dt.timedelta(seconds=left_s),
        NOW - dt.timedelta(hours=2, minutes=3),
        epoch,
        False,
        NOW,
    )


def facts(*members, embedded=False, lead=True, since_s=None):
    found = holder() if lead is True else lead
    since = None if since_s is None else NOW - dt.timedelta(seconds=since_s)
    return Facts(NOW, embedded, members, found, since)


@rule("interfaces C-1", "settled 15")
@pytest.mark.parametrize(
    ("found", "code", "healthy"),
    [
        (facts(), status.NO_WORKER, False),
        (facts(member(lease_left_s=-0.1, heartbeat_s=15.1)), status.NOT_RENEWING, False),
        (facts(member(roles=())), status.NO_WORKER, False),
        (facts(member(roles=("dispatcher",))), status.NO_SCHEDULER, False),
        (facts(member(info=HANGS)), status.LOOP_STALLED, False),
        (facts(member(), member("b", info=HANGS)), status.LOOP_STALLED, False),
        (facts(member(info=FAILS), member("b", info=HANGS)), status.LOOP_STALLED, False),
        (facts(member(), member("b", info=HANGS), lead=None), status.NO_LEADER, False),
        (facts(member(info=HANGS), SERVANT, lead=None), status.LOOP_STALLED, False),
        (facts(member(), lead=None), status.NO_LEADER, False),
        (facts(member(), lead=holder(-1), since_s=18), status.NO_LEADER, False),
        (facts(member(), lead=holder(owner=None), since_s=18), status.NO_LEADER, False),
        (facts(member(heartbeat_s=29)), status.STALE, False),
        (facts(member(), member("b", code_version="2")), status.DEGRADED, True),
        (facts(member(), member("b", schema_version="5-b")), status.DEGRADED, True),
        (facts(member(), embedded=True), status.EMBEDDED, True),
        (facts(member(), member("b")), status.HEALTHY, True),
        (facts(member(), member("b", info=FAILS)), status.LOOP_BROKEN, False),
    ],
)
def test_the_verdict_of_each_situation(found, code, healthy):
    judged = judge(found)
    assert (judged.code, judged.healthy) == (code, healthy)
    assert judged.text()
    assert "?" not in judged.text()
    json.dumps(dict(judged.params))


@rule("interfaces C-1")
def test_the_healthy_sentence_names_leader_epoch_tick_and_counts():
    text = judge(facts(member(), member("b"))).text()
    assert text == (
        "Healthy. web-2 leads (epoch 14, since 9:57 a.m., 2 h 3 min). "
        "Last tick 4 s ago. 2 workers, 1 version."
    )


@rule("interfaces C-1")
def test_the_embedded_sentence_says_for_how_long_it_has_led():
    text = judge(facts(member(), embedded=True)).text()
    assert "(epoch 14, since 9:57 a.m., 2 h 3 min)" in text


@rule("coordination HB6")
def test_a_loop_that_hangs_is_named_and_nothing_is_said_to_go_on():
    text = judge(facts(member(), member("b", info=HANGS))).text()
    assert text == (
        "The loop x of b hangs: that process leads nobody and claims no work until it ticks "
        "again. If it does not, restart it."
    )
    assert "go on" in judge(facts(member(info=FAILS))).text()


@rule("interfaces C-1")
def test_the_sentence_without_a_leader_says_for_how_long():
    judged = judge(facts(member(), lead=holder(-1), since_s=18))
    assert judged.text().startswith("No leader for 18 s: schedules are not firing.")


@rule("interfaces M-6")
def test_the_age_of_the_tick_that_still_passes_is_a_parameter():
    found = facts(member(heartbeat_s=10.0))
    assert judge(found, max_age_s=13).healthy
    assert not judge(found, max_age_s=12.9).healthy


@rule("architecture D7")
def test_the_sentence_is_in_the_readers_zone():
    judged = judge(facts(member()))
    with timezone.override("Asia/Tokyo"):
        assert "6:57 p.m." in judged.text()


@rule("architecture D7")
def test_no_sentence_breaks_when_a_parameter_is_missing():
    for code in status.TEMPLATES:
        assert Verdict(code).text()
    with translation.override("zh-hans"):
        for code in status.TEMPLATES:
            assert Verdict(code).text()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3725, "1 h 2 min"), (200000, "2 d 7 h")],
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration_words(seconds) == words


@pytest.mark.django_db
class TestReading:
    @rule("interfaces C-1")
    def test_the_verdict_is_read_from_the_rows(self, engine):
        assert status.verdict().code == status.NO_WORKER
        first, _ = two_workers()
        assert status.verdict().code == status.NO_LEADER
        first.leadership.claim()
        found = status.verdict()
        expected = status.EMBEDDED if engine == "sqlite" else status.HEALTHY
        assert (found.code, found.params["epoch"]) == (expected, 1)
        expire(by_s=18)
        found = status.verdict()
        assert found.code == status.NO_LEADER
        assert 17 < found.params["vacant_s"] < 30

    @rule("interfaces C-1")
    def test_a_released_or_taken_lease_tells_since_when_nobody_leads(self):
        first, _ = two_workers()
        first.leadership.claim()
        first.leadership.release()
        Lease.objects.update(released_at=dbnow() - dt.timedelta(seconds=7))
        LeaseHistory.objects.update(at=dbnow() - dt.timedelta(seconds=60))
        assert 6 < status.verdict().params["vacant_s"] < 20
        first.leadership.claim()
        Lease.objects.update(owner=None, lease_until=None)
        Worker.objects.filter(pk=first.owner).update(
            heartbeat_at=dbnow() - dt.timedelta(seconds=40)
        )
        assert 39 < status.verdict().params["vacant_s"] < 60

    @rule("coordination CK1")
    def test_a_worker_whose_lease_is_over_does_not_count(self):
        first, second = two_workers()
        expire_worker(first.owner)
        expire_worker(second.owner)
        assert status.verdict().code == status.NOT_RENEWING

    @rule("interfaces G-2")
    def test_a_verdict_costs_few_queries(self, django_assert_max_num_queries):
        first, _ = two_workers()
        first.leadership.claim()
        with django_assert_max_num_queries(4):
            status.verdict()

    @rule("interfaces M-8")
    def test_the_snapshot_is_json_and_counts_jobs_per_state(self):
        first, _ = two_workers()
        first.leadership.claim()
        for state in ("queued", "queued", "running"):
            rows.job(state)
        found = json.loads(json.dumps(status.snapshot()))
        counts = found["jobs"]["roundtable_tasks.TaskRun"]
        assert counts == {"queued": 2, "running": 1}
        assert found["leases"][0]["owner"] == first.owner
        assert {row["pid"] for row in found["workers"]}
        assert found["history"][0]["cause"] == "first"
        assert found["verdict"]["code"] == status.verdict().code

    @rule("interfaces M-8")
    def test_a_long_history_of_jobs_is_counted_as_far_as_its_newest_rows(self, monkeypatch):
        monkeypatch.setattr(status, "NEWEST_JOBS", 2)
        for state in ("queued", "running", "scheduled", "done", "done", "done"):
            rows.job(state)
        found = status.snapshot()["jobs"]["roundtable_tasks.TaskRun"]
        assert found == {"done": 2, "queued": 1, "running": 1, "scheduled": 1}

    @rule("interfaces M-8", "coordination TK1")
    def test_the_page_tells_how_a_lost_worker_was_taken_over(self):
        first, _ = two_workers()
        reaper.take_over(first.owner, EvidenceClass.PROVED, cause="supervisor saw exit -9")
        died = dbnow()
        Worker.objects.filter(pk=first.owner).update(
            ended_at=died, heartbeat_at=died - dt.timedelta(seconds=0.2)
        )
        [lost] = [row for row in status.snapshot()["workers"] if row["state"] == "lost"]
        words = "taken over after 0.2 s: supervisor saw exit -9"
        assert lost["end_text"] == words
        assert words in "\n".join(coordination_status.page(status.snapshot()))

    @rule("interfaces M-8")
    def test_the_page_fits_a_hundred_columns_whatever_the_names(self):
        first, _ = two_workers()
        first.leadership.claim()
        found = status.snapshot()
        for row in [*found["workers"], *found["leases"]]:
            row["id" if "id" in row else "name"] = "n" * 200
        lines = list(coordination_status.page(found))
        assert max(len(line) for line in lines) <= 100

    @rule("interfaces M-8")
    def test_the_command_exits_6_when_unhealthy_and_0_when_healthy(self, capsys):
        with pytest.raises(SystemExit) as left:
            call_command("coordination_status", "--json")
        assert left.value.code == 6
        assert json.loads(capsys.readouterr().out)["verdict"]["code"] == status.NO_WORKER
        first, _ = two_workers()
        first.leadership.claim()
        call_command("coordination_status")
        assert "epoch 1" in capsys.readouterr().out

    @rule("interfaces M-8", "architecture D7")
    def test_the_page_tells_causes_in_the_readers_language_and_short_gaps(self):
        first, second = two_workers()
        first.leadership.claim()
        reaper.take_over(first.owner, EvidenceClass.PROVED, cause="supervisor saw exit -9")
        second.leadership.claim()
        LeaseHistory.objects.filter(to_owner=second.owner).update(gap_s=0.02)
        with translation.override("zh-hans"):
            lines = list(coordination_status.page(status.snapshot()))
        text = "\n".join(lines)
        assert "监管进程看到退出码 -9" in text
        assert "supervisor saw" not in text
        [taken] = [line for line in lines if "0.02 s" in line]
        assert "已证实死亡" in taken
        [head] = [line for line in lines if line.startswith("TAKEN")]
        wide = sum(1 for letter in taken[: taken.index("0.02")] if ord(letter) > 0x2E80)
        assert taken.index("0.02") + wide == head.index("GAP")


def ends_after(looks, monkeypatch):
    """Let the watching person press Ctrl-C in the pause after so many looks."""
    pauses = iter([None] * (looks - 1))

    def sleep(_seconds):
        try:
            next(pauses)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(coordination_status.time, "sleep", sleep)


@pytest.mark.django_db(transaction=True)
class TestWatching:
    @rule("interfaces M-8")
    def test_a_server_that_restarts_is_a_line_and_the_next_look_has_a_new_connection(
        self, monkeypatch, capsys
    ):
        first, _ = two_workers()
        first.leadership.claim()
        looks = iter([None, OperationalError("terminating\n\tconnection"), None])
        read, used = status.snapshot, []

        def snapshot():
            used.append(connection.connection)
            if trouble := next(looks):
                raise trouble
            return read()

        monkeypatch.setattr(status, "snapshot", snapshot)
        ends_after(3, monkeypatch)
        call_command("coordination_status", "--watch", "2")
        said = capsys.readouterr()
        assert said.out.count("epoch 1") == 2
        told = r"\d\d:\d\d:\d\d error: the database does not answer: terminating connection\n"
        assert re.fullmatch(told, said.err)
        # What broke was closed, so that the third look connects anew.
        assert used[1] is not None
        assert used[2] is None

    @rule("interfaces M-8")
    @pytest.mark.parametrize(("trouble", "code"), [(None, 6), (OperationalError("no server"), 3)])
    def test_the_last_verdict_is_the_exit_code(self, monkeypatch, capsys, trouble, code):
        if trouble is not None:
            monkeypatch.setattr(status, "snapshot", Mock(side_effect=trouble))
        ends_after(2, monkeypatch)
        with pytest.raises(SystemExit) as left:
            call_command("coordination_status", "--watch", "2")
        assert left.value.code == code
        assert capsys.readouterr().err.count("error:") == (0 if trouble is None else 2)

    @rule("interfaces M-8")
    def test_without_watch_an_outage_ends_it(self, monkeypatch, capsys):
        monkeypatch.setattr(status, "snapshot", Mock(side_effect=OperationalError("no server")))
        with pytest.raises(SystemExit) as left:
            call_command("coordination_status")
        assert left.value.code == 3
        assert "error: the database does not answer: no server\nhint:" in capsys.readouterr().err
