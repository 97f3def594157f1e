"""The template report: step3 from the turns alone, when no model writes one.

Headings are in the job's language; everything else is what was said and counted. The same
turns give the same report on every worker. Reads translations, so it needs Django's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils import translation
from django.utils.translation import gettext as _

from roundtable_jobs.consensus import AGREE, DISAGREE, WITH_CHANGES, Measurement
from roundtable_jobs.snapshot import Snapshot
from roundtable_jobs.transcript import (
    BALLOT,
    STATEMENT,
    SUMMARY,
    Turn,
    in_order,
    measurements,
    motion_of,
    of_kind,
)

SCHEMA = 1
TEMPLATE = "template"
QUOTE_CHARACTERS = 400
_SIDES = (AGREE, WITH_CHANGES, DISAGREE)


def template(
    snapshot: Snapshot,
    turns: Sequence[Turn],
    *,
    title: str,
    outcome: str,
    cost: Mapping[str, object],
) -> dict[str, object]:
    """Return step3 as section 3 of the design has it, with `rev` 0: the finish fills it in."""
    turns = in_order(turns)
    measured = measurements(snapshot, turns)
    last = measured[-1][1] if measured else None
    summaries = [turn for turn in of_kind(turns, SUMMARY) if turn.said]
    summary = summaries[-1].content if summaries else ""
    report: dict[str, object] = {
        "schema": SCHEMA,
        "kind": TEMPLATE,
        "title": title,
        "summary": summary,
        "conclusion": _conclusion(turns, measured),
        "outcome": outcome,
        "consensus": _consensus(last, measured),
        "positions": _positions(snapshot, turns),
        "dissent": _dissent(turns, measured),
        "open_questions": [],
        "actions": [],
        "sections": _sections(snapshot, turns),
        "markdown": "",
        "turns": f"{turns[0].key}-{turns[-1].key}" if turns else "",
        "cost": dict(cost),
        "edited": False,
        "rev": 0,
    }
    with translation.override(snapshot.language):
        report["markdown"] = _markdown(report, last)
    return report


def _conclusion(turns: Sequence[Turn], measured: Sequence[tuple[int, Measurement]]) -> str:
    """Return the motion that won the last vote, "" when it was rejected or there was none."""
    if not measured:
        return ""
    round_no, last = measured[-1]
    motion = motion_of(turns, round_no)
    if motion is None or last.position in (None, DISAGREE):
        return ""
    text = str(motion.data.get("text", motion.content))
    return text if last.position == "agree" else f"{text}: {last.position}"


def _consensus(
    last: Measurement | None, measured: Sequence[tuple[int, Measurement]]
) -> dict[str, object]:
    by_round = [
        {"round": number, "percent": one.percent, "position": one.position, "quorum": one.quorum}
        for number, one in measured
    ]
    return {
        "percent": last.percent if last else None,
        "position": last.position if last else None,
        "weighted": last.weighted if last else None,
        "headcount": last.headcount if last else None,
        "quorum": last.quorum if last else False,
        "by_round": by_round,
    }


def _positions(snapshot: Snapshot, turns: Sequence[Turn]) -> list[dict[str, object]]:
    found = []
    for seat in snapshot.seats:
        said = [t for t in of_kind(turns, STATEMENT) if t.agent_id == seat.agent_id and t.said]
        ballot = _last_ballot(turns, seat.agent_id)
        found.append(
            {
                "agent_id": seat.agent_id,
                "name": seat.name,
                "text": said[-1].content if said else "",
                "turn": said[-1].key if said else None,
                "stance": ballot.get("stance"),
                "confidence": ballot.get("confidence"),
            }
        )
    return found


def _dissent(
    turns: Sequence[Turn], measured: Sequence[tuple[int, Measurement]]
) -> list[dict[str, object]]:
    """Return those who voted against the position that leads, with their words."""
    if not measured:
        return []
    round_no, last = measured[-1]
    found: list[dict[str, object]] = []
    for turn in of_kind(turns, BALLOT, round_no):
        ballot = turn.data.get("ballot")
        stance, option = last.positions.get(turn.agent_id, (None, None))
        if not isinstance(ballot, Mapping) or stance not in _SIDES:
            continue
        stands_for = DISAGREE if stance == DISAGREE else option or "agree"
        if last.position is None or stands_for == last.position:
            continue
        said = [t for t in of_kind(turns, STATEMENT) if t.agent_id == turn.agent_id and t.said]
        reasons = ballot.get("reasons")
        text = "; ".join(str(r) for r in reasons) if isinstance(reasons, (list, tuple)) else ""
        quote = said[-1].content[:QUOTE_CHARACTERS] if said else ""
        cited = said[-1].key if said else turn.key
        found.append({"agent_id": turn.agent_id, "text": text, "quote": quote, "turn": cited})
    return found


def _sections(snapshot: Snapshot, turns: Sequence[Turn]) -> list[dict[str, object]]:
    rounds = sorted({turn.round for turn in of_kind(turns, STATEMENT)})
    names = {seat.agent_id: seat.name for seat in snapshot.seats}
    return [
        {
            "round": number,
            "statements": [
                {"agent_id": t.agent_id, "name": names.get(t.agent_id, t.name), "turn": t.key}
                for t in of_kind(turns, STATEMENT, number)
                if t.said
            ],
        }
        for number in rounds
    ]


def _last_ballot(turns: Sequence[Turn], agent_id: str) -> Mapping[str, object]:
    for turn in reversed(of_kind(turns, BALLOT)):
        ballot = turn.data.get("ballot")
        if turn.agent_id == agent_id and isinstance(ballot, Mapping):
            return ballot
    return {}


def _markdown(report: Mapping[str, object], last: Measurement | None) -> str:
    lines = [f"# {report['title']}", "", _("This report was put together by a template."), ""]
    if last is None:
        lines += [_("There was no vote."), ""]
    elif last.percent is None:
        lines += [
            _("Below quorum: %(valid)d of %(needed)d valid ballots needed.")
            % {"valid": last.valid, "needed": last.quorum_needed},
            "",
        ]
    else:
        lines += [_("Consensus: %(percent)d %%") % {"percent": last.percent}, ""]
    for heading, key in ((_("Summary"), "summary"), (_("Conclusion"), "conclusion")):
        if report[key]:
            lines += [f"## {heading}", "", str(report[key]), ""]
    positions = report["positions"]
    assert isinstance(positions, list)
    spoken = [position for position in positions if position["text"]]
    if spoken:
        lines += [f"## {_('Positions')}", ""]
        lines += [f"- **{one['name']}**: {one['text']}" for one in spoken]
    return "\n".join(lines).strip() + "\n"
