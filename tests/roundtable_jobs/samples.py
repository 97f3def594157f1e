"""A small table of three seats, and turns as the executor commits them."""

import json

from roundtable_jobs.snapshot import Catalog, parse
from roundtable_jobs.transcript import Turn

AGENTS = ("ana", "ben", "eva")


def raw_snapshot(**changes):
    """Return valid inputs of a round robin of three scripted seats."""
    raw = {
        "topic": "Should the library open on Sundays?",
        "mode": "round_robin",
        "seed": 7331,
        "leader": {"agent_id": "lead", "name": "Chair", "model": "m"},
        "seats": [
            {"agent_id": agent, "name": agent.title(), "model": "m", "persona": f"I am {agent}."}
            for agent in AGENTS
        ],
        "order": "fixed",
        "rounds": {"min": 2, "max": 3},
    }
    return {**raw, **changes}


CATALOG = Catalog(backends={"default": None, "narrow": ("m",)}, modes=("round_robin",))


def snapshot(**changes):
    """Return a parsed snapshot."""
    return parse(raw_snapshot(**changes), CATALOG)


def ballot(agent, round_no, stance="agree", confidence=95, **more):
    """Return a ballot as a seat answers it."""
    return {
        "motion": f"m{round_no}",
        "stance": stance,
        "confidence": confidence,
        "conditions": [],
        "reasons": [f"{agent} says so"],
        "cites": [],
        "blocking": False,
        **more,
    }


def turn(step, ordinal, kind, agent, role, round_no=0, content="words", **more):
    """Return one committed turn."""
    return Turn(
        step=step,
        ordinal=ordinal,
        round=round_no,
        phase="x",
        kind=kind,
        agent_id=agent,
        role=role,
        name=agent.title(),
        content=content,
        **more,
    )


def a_round(first_step, round_no, stances, *, words=None):
    """Return the turns of one whole round, statements to summary."""
    words = words or {}
    turns = [
        turn(
            first_step,
            place,
            "statement",
            agent,
            "seat",
            round_no,
            words.get(agent, f"{agent} {round_no} has a new thought number {round_no}"),
        )
        for place, agent in enumerate(AGENTS)
    ]
    stated = {"id": f"m{round_no}", "text": f"Motion {round_no}", "options": []}
    turns.append(
        turn(first_step + 1, 0, "motion", "lead", "leader", round_no, stated["text"], data=stated)
    )
    for place, (agent, stance) in enumerate(zip(AGENTS, stances, strict=True)):
        vote = ballot(agent, round_no, stance)
        turns.append(
            turn(
                first_step + 2,
                place,
                "ballot",
                agent,
                "seat",
                round_no,
                json.dumps(vote),
                data={"ballot": vote},
            )
        )
    turns.append(turn(first_step + 3, 0, "summary", "lead", "leader", round_no, "so far so good"))
    return turns


def opening():
    """Return the two turns before the first round."""
    return [
        turn(0, 0, "plan", "system", "system", content=""),
        turn(1, 0, "opening", "lead", "leader", content="Welcome"),
    ]
