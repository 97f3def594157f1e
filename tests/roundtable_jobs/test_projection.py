import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundtable_jobs.projection import Draft, JobView, project, projected, run_id
from roundtable_jobs.transcript import dialogue
from tests.roundtable_jobs.samples import a_round, opening, snapshot
from tests.support.rules import rule

RUN_KEYS = {
    "id", "title", "createdAt", "source", "selectedAgents", "threadIds", "coordinatorName",
    "step2RoundtableDialogues", "lastLeaderContent", "hasConsensus", "consensusPercentage",
    "budgetLimit", "orchestrationMode", "chain", "orchestrationPlan", "step3", "jobId",
    "jobStatus", "outcome", "rev", "rounds", "costMicros", "step3Conflict",
}  # fmt: skip


def job(rev=1, turns=2, **changes):
    """Return a view of job j1 with the first `turns` of its turns."""
    spoken = (opening() + a_round(2, 1, ("agree",) * 3))[:turns]
    known = {
        "id": "j1",
        "title": "Sundays",
        "created_at": "2026-11-01T10:00:00Z",
        "status": "running",
        "outcome": None,
        "rev": rev,
        "mode": "round_robin",
        "snapshot": snapshot().as_json(),
        "dialogues": [dialogue(turn) for turn in spoken],
        "coordinator_name": "Chair",
        "draft_version": 7,
    }
    return JobView(**{**known, **changes})


def finished(rev=9, report=None, **changes):
    return job(
        rev,
        turns=8,
        status="done",
        outcome="consensus",
        consensus_percentage=100,
        step3=report or {"schema": 1, "markdown": "ours", "rev": rev},
        **changes,
    )


def draft(version=7, **document):
    return Draft(
        {"step1": {"q": 1}, "step2": {}, "step3": None, "furthest_step": 1, **document}, version
    )


def stored(of):
    """Return a draft as the host's database gives it back, one version on."""
    return Draft(json.loads(json.dumps(of.document)), of.version + 1)


def run_of(of):
    (run,) = [run for run in of.document["step2"]["runs"] if run["id"] == "job-j1"]
    return run


def edited(of, **fields):
    """Return the draft after the user changed fields of the run."""
    document = copy.deepcopy(of.document)
    document["step2"]["runs"][-1].update(fields)
    return Draft(document, of.version + 1)


@rule("roundtable 3", "roundtable P1")
def test_a_run_has_the_keys_of_the_shape_and_its_memory():
    run = run_of(project(job(), draft()))
    assert set(run) == RUN_KEYS | {"base"}
    assert run["id"] == run_id("j1") == "job-j1"
    assert run["source"] == run["orchestrationMode"] == "round_robin"
    assert run["createdAt"] == "2026-11-01T10:00:00Z"
    assert run["budgetLimit"] == 200_000
    assert run["lastLeaderContent"] == "Welcome"
    assert run["hasConsensus"] is False


def test_silent_seats_are_in_the_run():
    run = run_of(project(job(turns=0), draft()))
    assert [agent["agentId"] for agent in run["selectedAgents"]] == ["ana", "ben", "eva"]
    assert run["lastLeaderContent"] == ""


@rule("roundtable P1")
def test_a_draft_with_this_or_a_later_revision_is_left_alone():
    later = stored(project(job(rev=5), draft()))
    assert project(job(rev=5), later) is later
    assert project(job(rev=4), later) is later
    assert projected(job(rev=5), later)
    assert not projected(job(rev=6), later)


@rule("roundtable P1")
def test_the_result_reaches_the_document():
    done = project(finished(), stored(project(job(), draft())))
    run = run_of(done)
    assert done.document["step3"] == run["step3"] == {"schema": 1, "markdown": "ours", "rev": 9}
    assert done.document["furthest_step"] == 3
    assert done.document["step2"]["activeRunId"] == "job-j1"
    assert run["hasConsensus"] is True
    assert run["step3Conflict"] is False
    assert len(run["step2RoundtableDialogues"]) == 8


@rule("roundtable P1")
def test_done_without_consensus_has_no_consensus():
    other = JobView(**{**vars(finished()), "outcome": "max_rounds"})
    assert run_of(project(other, draft()))["hasConsensus"] is False


@rule("roundtable P3")
def test_the_furthest_step_never_goes_back():
    assert project(job(), draft(furthest_step=4)).document["furthest_step"] == 4
    assert project(job(), draft(furthest_step=1)).document["furthest_step"] == 2
    failed = job(status="error", rev=3)
    assert project(failed, draft()).document["furthest_step"] == 2


@rule("roundtable P1")
def test_unknown_keys_of_document_and_run_are_kept():
    first = project(job(), draft(mine={"a": 1}, step2={"filter": "x", "runs": [{"id": "other"}]}))
    noted = edited(first, colour="red")
    document = project(finished(), noted).document
    assert document["mine"] == {"a": 1}
    assert document["step2"]["filter"] == "x"
    assert document["step2"]["runs"][0] == {"id": "other"}
    assert document["step2"]["runs"][1]["colour"] == "red"


@rule("roundtable P1")
def test_a_field_that_the_user_edited_is_kept_and_the_others_go_on():
    first = edited(stored(project(job(), draft())), title="My title", lastLeaderContent="mine")
    run = run_of(project(finished(), first))
    assert run["title"] == "My title"
    assert run["lastLeaderContent"] == "mine"
    assert run["rev"] == 9
    again = run_of(project(finished(rev=10), stored(project(finished(), first))))
    assert again["title"] == "My title"


def test_facts_of_the_job_are_never_taken_from_the_document():
    first = edited(stored(project(job(), draft())), jobStatus="won", costMicros=-1)
    run = run_of(project(finished(), first))
    assert (run["jobStatus"], run["costMicros"]) == ("done", 0)


@rule("roundtable P1")
def test_edited_added_and_deleted_dialogue_entries_stay_so_and_new_turns_still_arrive():
    first = stored(project(job(turns=4), draft()))
    entries = run_of(first)["step2RoundtableDialogues"]
    entries[1]["content"] = "Welcome, corrected"
    del entries[2]
    entries.insert(1, {"content": "my own remark"})
    run = run_of(project(finished(), first))
    shown = [(e.get("turn"), e["content"]) for e in run["step2RoundtableDialogues"]]
    assert shown[:3] == [("0.0", ""), (None, "my own remark"), ("1.0", "Welcome, corrected")]
    turns = [turn for turn, _ in shown if turn]
    assert turns == ["0.0", "1.0", "2.1", "2.2", "3.0", "4.0", "4.1"]


@rule("roundtable P4")
def test_a_report_that_the_user_wrote_meanwhile_is_not_overwritten():
    first = stored(project(job(), draft()))
    typed = Draft({**first.document, "step3": {"markdown": "by hand"}}, first.version + 1)
    done = project(finished(), typed)
    assert done.document["step3"] == {"markdown": "by hand"}
    assert run_of(done)["step3"]["markdown"] == "ours"
    assert run_of(done)["step3Conflict"] is True


@rule("roundtable P4")
def test_a_report_from_before_the_job_is_replaced():
    first = project(job(), draft(step3={"markdown": "old"}))
    done = project(finished(), stored(first))
    assert done.document["step3"]["markdown"] == "ours"


@rule("roundtable P4")
def test_a_document_written_before_the_first_projection_counts_as_touched():
    first = project(job(), draft(version=8, step3={"markdown": "by hand"}))
    assert project(finished(), stored(first)).document["step3"] == {"markdown": "by hand"}


@rule("roundtable P4")
def test_the_report_of_an_earlier_job_is_replaced_even_at_another_version():
    before = stored(project(finished(), draft()))
    second = project(finished(rev=2, report={"markdown": "second"}, id="j2"), before)
    assert second.document["step3"] == {"markdown": "second"}
    assert second.document["step2"]["activeRunId"] == "job-j2"


@rule("roundtable P4")
def test_a_run_that_the_user_chose_stays_chosen():
    first = stored(project(job(), draft()))
    first.document["step2"]["activeRunId"] = "elsewhere"
    assert project(finished(), first).document["step2"]["activeRunId"] == "elsewhere"


@rule("roundtable P4")
def test_a_report_edited_in_the_run_is_kept_there_and_flagged():
    first = stored(project(finished(), draft()))
    mine = {"markdown": "edited in the run"}
    resumed = finished(rev=20, report={"markdown": "after resume"})
    done = project(resumed, edited(first, step3=mine))
    assert run_of(done)["step3"] == mine
    assert run_of(done)["step3Conflict"] is True
    assert done.document["step3"]["markdown"] == "ours"


@rule("roundtable P1")
def test_a_resumed_job_without_a_report_yet_keeps_the_earlier_one():
    first = stored(project(finished(), draft()))
    run = run_of(project(job(rev=12, turns=8), first))
    assert run["step3"]["markdown"] == "ours"
    assert run["jobStatus"] == "running"


def test_editing_the_top_report_after_the_end_is_no_conflict_of_a_later_status():
    first = stored(project(finished(), draft()))
    first.document["step3"] = {"markdown": "polished"}
    later = JobView(**{**vars(finished()), "rev": 11})
    done = project(later, first)
    assert done.document["step3"] == {"markdown": "polished"}
    assert run_of(done)["step3Conflict"] is False


def test_a_deleted_run_comes_back_and_still_overwrites_nothing_of_the_user():
    first = stored(project(job(), draft()))
    first.document["step2"]["runs"] = []
    first.document["step3"] = {"markdown": "by hand"}
    done = project(finished(), first)
    assert run_of(done)["rev"] == 9
    assert done.document["step3"] == {"markdown": "by hand"}


def test_a_document_that_cannot_hold_runs_is_refused():
    with pytest.raises(ValueError, match="step2"):
        project(job(), draft(step2=["x"]))


def test_what_a_host_stores_beyond_strict_json_does_not_stop_projection():
    odd = draft(step3={"x": "\ud800", "y": float("nan")})
    assert project(job(), odd).document["step3"]["x"] == "\ud800"


def test_the_given_draft_is_not_changed():
    given_draft = draft(step2={"runs": [{"id": "job-j1", "rev": 0}]})
    before = copy.deepcopy(given_draft.document)
    project(finished(), given_draft)
    assert given_draft.document == before


KEYS = st.sampled_from(["title", "note", "lastLeaderContent", "chain", "threadIds"])
EDITS = st.lists(st.tuples(st.integers(1, 9), KEYS, st.text(max_size=5)), max_size=6)


@rule("roundtable P1", "roundtable P5", "roundtable P7")
@given(EDITS)
def test_whatever_the_user_edits_between_projections_survives_and_the_last_revision_arrives(edits):
    current, mine = draft(), {}
    for rev in range(1, 10):
        current = stored(project(job(rev=rev, turns=rev), current))
        for when, key, value in edits:
            if when == rev:
                current = edited(current, **{key: f"u{value}"})
                mine[key] = f"u{value}"
    run = run_of(project(finished(rev=10), current))
    assert run["rev"] == 10
    assert {key: run[key] for key in mine} == mine
