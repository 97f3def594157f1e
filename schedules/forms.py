"""The admin's form of a schedule: what a person may set, and what they saw when they began.

The form never saves a row: `values()` and `changes()` go to the verbs of `fires`, which judge
them. What a verb refuses comes back as `refusal` and is shown beside its fields, with every
value of the person kept (G-9).
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from django import forms
from django.core import signing
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from schedules import states, triggers
from schedules.conf import conf
from schedules.errors import KeyTaken, ScheduleInvalid, SchedulesError, StaleVersion
from schedules.fires import changes
from schedules.models import Schedule
from schedules.showing import problem_text, refusal_text

if TYPE_CHECKING:
    _Form = forms.ModelForm[Schedule]
else:
    _Form = forms.ModelForm

SALT = "schedules.form"
SETTINGS = (
    "name",
    "key",
    "tags",
    "kind",
    "cron",
    "timezone",
    "interval_s",
    "once_at",
    "event_kind",
    "event_subject",
    "event_conditions",
    "debounce_s",
    "starts_at",
    "ends_at",
    "jitter_s",
    "target",
    "inputs",
    "priority",
    "overlap",
    "misfire_grace_s",
)
FIXED = ("key", "kind")


class Suggestions(forms.TextInput):
    """A text field that offers values and accepts others; works without script."""

    template_name = "schedules/widgets/suggestions.html"

    def __init__(self, offered: Callable[[], Iterable[str]], **attrs: Any) -> None:
        super().__init__(attrs={"autocomplete": "off", "spellcheck": "false", **attrs})
        self.offered = offered

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        """Add the values and tie them to the field."""
        context = super().get_context(name, value, attrs)
        listed = f"{context['widget']['attrs'].get('id', name)}_offered"
        context["widget"]["attrs"]["list"] = listed
        context["widget"] |= {"list_id": listed, "offered": list(self.offered())}
        return context


class TagsField(forms.CharField):
    """A list of words, typed with commas."""

    def prepare_value(self, value: Any) -> Any:
        """Show a stored list as typed text."""
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        """Return the words; an empty list for nothing."""
        return [word for part in (value or "").split(",") if (word := part.strip())]

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare words, not the spaces between them."""
        return bool(self.to_python(self.prepare_value(initial)) != self.to_python(data))


class JsonObjectField(forms.JSONField):
    """A JSON object; nothing typed means the empty one."""

    def clean(self, value: Any) -> Any:
        """Return the object; refuse any other JSON."""
        found = super().clean(value)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise forms.ValidationError(_("Enter a JSON object."), code="not_an_object")
        return found


def _kinds() -> list[str]:
    return sorted(kind.name for kind in triggers.all_kinds())


def _targets() -> list[str]:
    return sorted(set(Schedule.objects.values_list("target", flat=True)[:200]))


def _zones() -> list[str]:
    return sorted(zoneinfo.available_timezones())


class ScheduleForm(_Form):
    """Settings of a schedule. `refusal` is what a verb said to an earlier try of this request."""

    refusal: SchedulesError | None = None
    seen_version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    original = forms.CharField(widget=forms.HiddenInput, required=False)
    tags = TagsField(
        label=gettext_lazy("Tags"), required=False, help_text=gettext_lazy("Words with commas.")
    )
    inputs = JsonObjectField(
        label=gettext_lazy("Inputs"),
        initial=dict,
        required=False,
        widget=forms.Textarea(attrs={"rows": 6, "class": "ops-mono", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "A JSON object: the keyword arguments of the target. "
            "{{ fire.fire_at }} and {{ event.… }} are replaced when it fires."
        ),
    )
    event_conditions = JsonObjectField(
        label=gettext_lazy("Event conditions"),
        initial=dict,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "class": "ops-mono", "spellcheck": "false"}),
        help_text=gettext_lazy("A JSON object. All of them must hold."),
    )

    class Meta:
        model = Schedule
        fields = SETTINGS
        widgets = {
            "cron": forms.TextInput(
                attrs={
                    "class": "ops-mono",
                    "spellcheck": "false",
                    "autocapitalize": "off",
                    "autocomplete": "off",
                }
            ),
            "timezone": Suggestions(_zones),
            "target": Suggestions(_targets, size=60),
            "event_kind": Suggestions(_kinds),
        }
        help_texts = {
            "key": gettext_lazy("Small letters, digits and . _ / -. It never changes."),
            "kind": gettext_lazy("It never changes."),
            "cron": gettext_lazy("minute hour day month weekday, or @daily and its like."),
            "timezone": gettext_lazy("An IANA name. Empty: the time zone of the project."),
            "interval_s": gettext_lazy("Seconds from one due instant to the next."),
            "target": gettext_lazy("The module path of a task, or a registered target."),
            "debounce_s": gettext_lazy(
                "Seconds after the first event in which further ones join it."
            ),
            "jitter_s": gettext_lazy("Starts are spread over so many seconds."),
            "misfire_grace_s": gettext_lazy(
                "A fire up to so many seconds late still runs once; older ones are recorded as "
                "skipped."
            ),
            "overlap": gettext_lazy("What happens while the run before has not ended."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "overlap" in self.fields:
            self.fields["overlap"] = forms.ChoiceField(
                label=self.fields["overlap"].label,
                help_text=self.fields["overlap"].help_text,
                choices=[
                    (value, label)
                    for value, label in states.Overlap.choices
                    if value in states.SUPPORTED_OVERLAP or value == self.instance.overlap
                ],
            )
        for field in self.fields.values():
            _name_the_parts(field)
        if self.instance._state.adding:
            self.initial.setdefault("debounce_s", conf.DEBOUNCE_S)
            self.initial.setdefault("misfire_grace_s", conf.MISFIRE_GRACE_S)
        else:
            self.initial["seen_version"] = self.instance.version
            self.initial["original"] = signing.dumps(self._stored(), salt=SALT)

    def _stored(self) -> dict[str, Any]:
        names = [name for name in SETTINGS if name in self.fields]
        return {name: changes.as_json(getattr(self.instance, name)) for name in names}

    def clean(self) -> dict[str, Any]:
        """Add what a verb refused in an earlier try of this request to the fields it names."""
        cleaned = super().clean() or self.cleaned_data
        for field, text in refusal_texts(self.refusal):
            self.add_error(field if field in self.fields else None, text)
        return cleaned

    def values(self) -> dict[str, Any]:
        """Return every setting as typed."""
        return {name: self.cleaned_data[name] for name in SETTINGS if name in self.cleaned_data}

    def original_values(self) -> dict[str, Any]:
        """Return the settings as JSON, as they were when the person opened the form.

        Empty when the form does not carry them or they were tampered with.
        """
        try:
            found = signing.loads(self.data.get(self.add_prefix("original"), ""), salt=SALT)
        except signing.BadSignature:
            return {}
        return dict(found)

    def changes(self) -> dict[str, Any]:
        """Return the settings that the person changed, and no others.

        What they left alone is not sent, so saving over somebody else's edit keeps that edit
        in the other fields.
        """
        original = self.original_values()
        return {
            name: value
            for name, value in self.values().items()
            if name not in FIXED
            and (name not in original or changes.as_json(value) != original[name])
        }

    def version(self) -> int:
        """Return the version that the person knowingly changes: seen at first, or overwritten."""
        confirmed = str(self.data.get("_overwrite", ""))
        return int(confirmed) if confirmed.isdigit() else self.cleaned_data["seen_version"] or 0


def _name_the_parts(field: forms.Field) -> None:
    """Give date and time of an instant a name each; the stock form leaves both without one."""
    if isinstance(field.widget, forms.SplitDateTimeWidget):
        for part, name in zip(field.widget.widgets, (_("date"), _("time")), strict=True):
            part.attrs["aria-label"] = f"{field.label}: {name}"


def refusal_texts(refusal: SchedulesError | None) -> list[tuple[str, str]]:
    """Return (field, sentence) for everything that a verb refused; "" where no field is named."""
    if isinstance(refusal, ScheduleInvalid):
        return [(problem.field, problem_text(problem)) for problem in refusal.problems]
    if isinstance(refusal, KeyTaken):
        return [("key", _("A schedule with this key exists already."))]
    if isinstance(refusal, StaleVersion):
        return [("", _("Not saved: somebody else changed this schedule."))]
    if refusal is not None:
        return [("", refusal_text(refusal))]
    return []


class PauseForm(forms.Form):
    """The one question that pausing asks."""

    note = forms.CharField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=500,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("Shown wherever the pause is shown."),
    )
