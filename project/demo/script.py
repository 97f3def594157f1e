"""What the four seats of the demo's roundtable say. Plain data; settings hand it to the seats."""

from __future__ import annotations

from typing import Any

TITLE = "The archive before winter"
TOPIC = "Shall the archive be moved to the new building before the winter?"
LEADER = ("chair", "Chair")
SEATS = (
    ("nora", "Nora", "Archivist. Thinks of the paper first."),
    ("omar", "Omar", "Runs the building site. Thinks of days and lorries."),
    ("lena", "Lena", "Keeps the budget. Thinks of what it costs to be wrong."),
    ("kofi", "Kofi", "Speaks for the readers. Thinks of closed doors."),
)

_SAID: dict[str, tuple[str, str, str]] = {
    "nora": (
        "The old cellar was damp twice last year. Paper that rots there nobody prints again.",
        "Then let the maps go first. They suffer most, and they fill one lorry.",
        "Maps in October, the rest in spring. I can live with that, and so can the paper.",
    ),
    "omar": (
        "The climate system is on test until the end of September. Before that I sign nothing.",
        "One lorry in October is possible. Forty lorries before the frost are not.",
        "October for the maps is in my plan now; the lift is booked for the second week.",
    ),
    "lena": (
        "A move in two parts costs about a tenth more. A wet cellar costs more than that.",
        "If only the maps move, the tenth shrinks to a few hundred. That is in the reserve.",
        "The reserve covers it. I have nothing left to object.",
    ),
    "kofi": (
        "Readers wait months for a seat. If we close, tell them now and not in autumn.",
        "Closing the map room alone is fair. The big hall must stay open.",
        "With the hall open through the winter, the readers are on your side.",
    ),
}
_MOTIONS = (
    "Move the whole archive before the winter.",
    "Move the maps in October and the rest in spring.",
    "Move the maps in October and the rest in spring; the hall stays open.",
)
_SUMMARIES = (
    "Everybody wants the paper dry. The dispute is about how much can move before the frost.",
    "Moving the maps first meets the damp, the site and the budget. The hall stays open.",
    "All four agree: maps in October, the rest in spring, the hall open throughout.",
)
_STANCES = {
    "nora": (("agree", 95), ("agree", 95), ("agree", 95)),
    "omar": (("disagree", 92), ("agree", 90), ("agree", 92)),
    "lena": (("agree_with_changes", 85), ("agree", 90), ("agree", 95)),
    "kofi": (("disagree", 88), ("agree", 85), ("agree", 90)),
}


def rules() -> list[dict[str, Any]]:
    """Return the rules of the scripted seats: who says what, in which round."""
    leader = LEADER[0]
    found: list[dict[str, Any]] = [
        {
            "agent": leader,
            "kind": "opening",
            "text": "Welcome. The question is on the table; each of you has one minute a round.",
        }
    ]
    for number in range(3):
        at = {"round": number + 1}
        found.append({"agent": leader, "kind": "motion", "text": _motion(number), **at})
        found.append({"agent": leader, "kind": "summary", "text": _SUMMARIES[number], **at})
        for agent, said in _SAID.items():
            found.append({"agent": agent, "kind": "statement", "text": said[number], **at})
            found.append({"agent": agent, "kind": "ballot", "text": _ballot(agent, number), **at})
    return found


def _motion(number: int) -> dict[str, Any]:
    return {"text": _MOTIONS[number], "options": []}


def _ballot(agent: str, number: int) -> dict[str, Any]:
    stance, confidence = _STANCES[agent][number]
    return {
        "motion": f"m{number + 1}",
        "stance": stance,
        "confidence": confidence,
        "conditions": [],
        "reasons": [_SAID[agent][number].split(".")[0] + "."],
        "cites": [],
        "blocking": False,
    }


def inputs(backend: str) -> dict[str, Any]:
    """Return the snapshot inputs of the demo's roundtable, as a host would write them."""
    leader_id, leader_name = LEADER
    return {
        "topic": TOPIC,
        "mode": "round_robin",
        "order": "fixed",
        "seed": 7331,
        "rounds": {"min": 2, "max": 3},
        "leader": {
            "agent_id": leader_id,
            "name": leader_name,
            "backend": backend,
            "model": "scripted",
            "persona": "Fair and short.",
        },
        "seats": [
            {
                "agent_id": agent,
                "name": name,
                "persona": persona,
                "backend": backend,
                "model": "scripted",
            }
            for agent, name, persona in SEATS
        ],
    }
