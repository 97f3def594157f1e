"""How turns are shown to people: a ballot in words, a plan without its data."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from roundtable_jobs.models import RoundtableTurn
from roundtable_jobs.states import TurnKind


def stance_words(stance: object) -> str:
    """Return the stance of a ballot in the reader's language; the value itself when unknown."""
    words = {
        "agree": pgettext("stance", "agrees"),
        "agree_with_changes": pgettext("stance", "agrees with changes"),
        "disagree": pgettext("stance", "disagrees"),
        "abstain": pgettext("stance", "abstains"),
    }
    return words.get(str(stance), str(stance))


def said(turn: RoundtableTurn) -> str:
    """Return what a turn says to a reader: its text, or the words of a ballot."""
    if turn.kind == TurnKind.PLAN and not turn.content:
        return _("decides who speaks when")
    if turn.kind != TurnKind.BALLOT:
        return turn.content
    ballot = turn.data.get("ballot") if isinstance(turn.data, dict) else None
    if not isinstance(ballot, dict):
        return _("no valid ballot: %(text)s") % {"text": turn.content}
    words = _("%(stance)s (%(confidence)s %%)") % {
        "stance": stance_words(ballot.get("stance")),
        "confidence": ballot.get("confidence", "?"),
    }
    reasons = ballot.get("reasons")
    given = " ".join(str(reason) for reason in reasons) if isinstance(reasons, list) else ""
    return f"{words}: {given}" if given else words
