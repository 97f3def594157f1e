"""What this room declares to the others: its writers with their tokens, its reason sentences."""

from __future__ import annotations

from functools import partial

from django.utils.translation import gettext_lazy as _

from coordination import database, reasons
from coordination.claims import asking, endings, gate, stalling, takeover
from coordination.jobs import LeasedJob, leased_models
from coordination.writers import Writer, register_writer

TOKEN = ("id", "lease_owner", "attempt", "status")


def register() -> None:
    """Register the holder statements of every LeasedJob model. Called when apps are ready."""
    for model in leased_models():
        for verb in endings.VERBS:
            _declare(model, verb.name, partial(_ending, verb, model))
        _declare(model, "claims.update", partial(gate.update_sql, model))
        _declare(model, "claims.fenced_atomic", partial(_gate, model))
    reasons.register(
        {
            takeover.REASON_CRASHED: _("it crashed its workers too often in a row"),
            stalling.REASON_STALLED: _("it made no progress in several attempts in a row"),
            endings.REASON_HOOK: _("its end was refused: %(error)s"),
            asking.REASON_RESUMED: _("resumed by %(by)s"),
        }
    )


def writer_name(model: type[LeasedJob], verb: str) -> str:
    """How a verb is listed for one table: `claims.finish roundtable_tasks_taskrun`."""
    return f"{verb} {model._meta.db_table}"


def _declare(model: type[LeasedJob], verb: str, statement: partial[str]) -> None:
    register_writer(Writer(writer_name(model, verb), model._meta.db_table, TOKEN, statement))


def _ending(verb: endings.Verb, model: type[LeasedJob]) -> str:
    return endings.ending_sql(database.sql_for(database.connection_of()), verb, model)


def _gate(model: type[LeasedJob]) -> str:
    return gate.gate_sql(database.sql_for(database.connection_of()), model)
