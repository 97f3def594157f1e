"""gettext that also works before Django is set up: then the English original is returned.

The pure rooms are used without settings, by `schedules preview` in a bare script or by a
host's own tests. The functions keep gettext's names, so `makemessages` finds the strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.apps import apps
from django.conf import settings
from django.utils import translation
from django.utils.functional import Promise


def _ready() -> bool:
    return settings.configured and apps.ready


def gettext(message: str) -> str:
    """Return the message in the active language."""
    return translation.gettext(message) if _ready() else message


def ngettext(singular: str, plural: str, number: int) -> str:
    """Return the form for a number in the active language."""
    if _ready():
        return translation.ngettext(singular, plural, number)
    return singular if number == 1 else plural


def gettext_noop(message: str) -> str:
    """Mark a template for translation and return it; it is translated when it is shown."""
    return message


def lazy(templates: Mapping[str, str]) -> dict[str, Promise]:
    """Return marked templates as lazy translations, as `coordination.reasons` takes them."""
    return {code: translation.gettext_lazy(text) for code, text in templates.items()}


def listed(items: Iterable[str]) -> str:
    """Join items the way the active language does: "a, b and c"."""
    found = list(items)
    if len(found) < 2:
        return "".join(found)
    head = found[0]
    for item in found[1:-1]:
        head = gettext("%(head)s, %(item)s") % {"head": head, "item": item}
    return gettext("%(head)s and %(last)s") % {"head": head, "last": found[-1]}
