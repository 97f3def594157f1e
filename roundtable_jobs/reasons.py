"""The sentences of this app's codes: broken snapshots, skipped turns, projection, refusals."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from roundtable_jobs.reading import Fault

SNAPSHOT = {
    "snapshot_missing": _("The input snapshot is missing."),
    "corrupt": _("The input snapshot is damaged (%(reason)s)."),
    "unsupported": _("The input snapshot is of a kind that this release does not know."),
    "unknown_backend": _("The input snapshot names a backend or model that is not configured."),
}
SKIPPED = {
    "budget": _("Not spoken: the budget is spent."),
    "deadline": _("Not spoken: the deadline has passed."),
    "stopped_early": _("Not spoken: the discussion was asked to wrap up."),
    "context_overflow": _("Not spoken: the prompt is longer than the model's context."),
    "seat_failed": _("Not spoken: the seat could not be reached (%(state)s)."),
    "empty_reply": _("Not spoken: the model gave an empty answer twice."),
    "no_motion": _("The leader stated no motion."),
}
PROJECTION = {
    "draft_conflict": _("Waiting: the draft was changed meanwhile; it will be tried again."),
    "draft_error": _("Waiting: the draft could not be written; it will be tried again."),
    "orphaned_result": _("The draft was deleted; the result stays with the job."),
    "draft_store_missing": _("No draft store is configured; the result stays with the job."),
}
REFUSED = {
    "required": _("This field is required."),
    "empty": _("This field must not be empty."),
    "unknown_field": _("There is no such field."),
    "type": _("Expected: %(expected)s."),
    "too_long": _("Too long: %(actual)s, at most %(limit)s."),
    "characters": _("It holds characters that cannot be stored."),
    "format": _("It does not have the form %(pattern)s."),
    "range": _("It must be between %(low)s and %(high)s."),
    "choice": _("It must be one of: %(options)s."),
    "items": _("There are %(actual)s; there must be %(low)s to %(high)s."),
    "duplicate": _("%(value)s occurs twice."),
    "mode_unavailable": _("The mode %(mode)s is not in this release; available: %(available)s."),
    "unknown_backend": _("There is no backend %(backend)s; available: %(available)s."),
    "model_not_allowed": _("The backend %(backend)s does not offer the model %(model)s."),
}
"""Sentences of the faults of inputs. Not in the common registry: their codes are common words."""
TEMPLATES = {**SNAPSHOT, **SKIPPED, **PROJECTION}


def refusal(fault: Fault) -> str:
    """Return the sentence of a fault in the active language, for forms and problem details."""
    template = REFUSED.get(fault.code)
    if template is None:
        return fault.code
    params = {
        key: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        for key, value in fault.params.items()
    }
    return str(template) % params
