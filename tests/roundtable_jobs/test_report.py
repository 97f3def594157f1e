from roundtable_jobs.report import template
from tests.roundtable_jobs.samples import a_round, opening, snapshot
from tests.support.rules import rule

STEP3 = {
    "schema", "kind", "title", "summary", "conclusion", "outcome", "consensus", "positions",
    "dissent", "open_questions", "actions", "sections", "markdown", "turns", "cost", "edited",
    "rev",
}  # fmt: skip


def report(stances, outcome="max_rounds", **changes):
    turns = opening() + a_round(2, 1, stances)
    return template(
        snapshot(**changes), turns, title="Sundays", outcome=outcome, cost={"cost_micros": 5}
    )


@rule("roundtable 3", "roundtable 5")
def test_a_template_report_has_the_shape_and_says_who_wrote_it():
    made = report(("agree", "agree", "disagree"))
    assert set(made) == STEP3
    assert made["kind"] == "template"
    assert made["turns"] == "0.0-5.0"
    assert made["conclusion"] == "Motion 1"
    assert made["consensus"]["percent"] == 66
    assert made["consensus"]["by_round"] == [
        {"round": 1, "percent": 66, "position": "agree", "quorum": True}
    ]


def test_who_voted_against_is_quoted():
    (dissent,) = report(("agree", "agree", "disagree"))["dissent"]
    assert dissent["agent_id"] == "eva"
    assert dissent["text"] == "eva says so"
    assert dissent["turn"] == "2.2"
    assert dissent["quote"].startswith("eva 1 has")


def test_a_rejected_motion_is_no_conclusion():
    assert report(("disagree",) * 3)["conclusion"] == ""


@rule("roundtable C14")
def test_below_quorum_the_head_of_the_text_says_so():
    made = report(("agree", "nonsense", "nonsense"))
    assert made["consensus"]["percent"] is None
    assert "Below quorum: 1 of 2" in made["markdown"].splitlines()[4]


def test_every_seat_has_a_position_in_the_report():
    made = report(("agree",) * 3)
    assert [one["agent_id"] for one in made["positions"]] == ["ana", "ben", "eva"]


def test_a_job_without_turns_still_has_a_report():
    made = template(snapshot(), [], title="T", outcome="budget", cost={})
    assert made["turns"] == ""
    assert "There was no vote." in made["markdown"]
