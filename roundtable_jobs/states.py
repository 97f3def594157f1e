"""The vocabulary of roundtables: outcomes, turn and call states. Frozen from migration 0001.

The job's own states are those of leased work (`coordination.jobs.JobStatus`).
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class JobOutcome(models.TextChoices):
    """Why a roundtable that is `done` ended (section 2). `done` is not consensus."""

    CONSENSUS = "consensus", _("consensus")
    STABLE_DISAGREEMENT = "stable_disagreement", _("stable disagreement")
    MAX_ROUNDS = "max_rounds", _("all rounds held")
    BUDGET = "budget", _("budget used up")
    DEADLINE = "deadline", _("deadline reached")
    NO_NEW_CONTENT = "no_new_content", _("nothing new was said")
    STOPPED_EARLY = "stopped_early", _("stopped early")


class Mode(models.TextChoices):
    """Orchestration modes (section 5)."""

    RECOMMEND = "recommend", _("recommend")
    ROUND_ROBIN = "round_robin", _("round robin")
    CHAIN = "chain", _("chain")
    DEBATE = "debate", _("debate")
    DELPHI = "delphi", _("Delphi")
    COUNCIL = "council", _("council")


class TurnKind(models.TextChoices):
    """What a turn is (section 1)."""

    PLAN = "plan", _("plan")
    OPENING = "opening", _("opening")
    STATEMENT = "statement", _("statement")
    REBUTTAL = "rebuttal", _("rebuttal")
    MOTION = "motion", _("motion")
    BALLOT = "ballot", _("ballot")
    SUMMARY = "summary", _("summary")
    NOTE = "note", _("note")
    REPORT = "report", _("report")


class TurnRole(models.TextChoices):
    """Who speaks."""

    LEADER = "leader", _("leader")
    SEAT = "seat", _("seat")
    USER = "user", _("user")
    SYSTEM = "system", _("system")


class TurnState(models.TextChoices):
    """Whether the turn was spoken."""

    COMMITTED = "committed", _("committed")
    SKIPPED = "skipped", _("skipped")


class UsageSource(models.TextChoices):
    """Where the token counts come from."""

    PROVIDER = "provider", _("provider")
    ESTIMATED = "estimated", _("estimated")


class CallState(models.TextChoices):
    """What became of one paid try (the bill, section 1)."""

    STARTED = "started", _("started")
    OK = "ok", _("ok")
    RATE_LIMITED = "rate_limited", _("rate limited")
    TIMEOUT = "timeout", _("timed out")
    TRANSPORT = "transport", _("connection failed")
    TRUNCATED = "truncated", _("truncated")
    REFUSED = "refused", _("refused")
    BAD_REQUEST = "bad_request", _("bad request")
    AUTH = "auth", _("not authorised")
    OVERFLOW = "overflow", _("too long")
    CANCELLED = "cancelled", _("cancelled")
    ORPHANED = "orphaned", _("orphaned")
    FENCED = "fenced", _("fenced")


class ReportKind(models.TextChoices):
    """Who wrote the report (section 5)."""

    LEADER = "leader", _("leader")
    DEPUTY = "deputy", _("deputy")
    TEMPLATE = "template", _("template")
