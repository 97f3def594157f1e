"""`{{ event.* }}` and `{{ fire.* }}` in inputs (E19)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import rendering, triggers
from schedules.rendering import MissingValue, check, fire_values, has_placeholders, render
from tests.schedules.cron_reference import utc
from tests.support.rules import rule

ALLOWED = frozenset({"fire.id", "fire.fire_at", "event.id", "event.count", "event.outputs.*"})
VALUES = {
    "fire": {"id": "f1", "fire_at": "2026-05-01T02:30:00Z"},
    "event": {"id": "e1", "count": 3, "note": None, "outputs": {"rows": [1, 2], "name": "Zoë"}},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="abc{ }é/~", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
)


@rule("schedules E19")
@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{{ event.count }}", 3),
        ("{{event.count}}", 3),
        ("{{ event.outputs.rows }}", [1, 2]),
        ("{{ event.note }}", None),
        ("n={{ event.count }}", "n=3"),
        ("{{ event.outputs.rows }} of {{ event.id }}", "[1, 2] of e1"),
        ("{{ event.outputs.name }}!", "Zoë!"),
        ("{{ fire.id }}{{ fire.id }}", "f1f1"),
        ({"a": ["{{ fire.id }}", {"b": "x{{ event.id }}"}]}, {"a": ["f1", {"b": "xe1"}]}),
        ({"a": 1, "b": None, "c": True, "d": "plain } {"}, None),
    ],
)
def test_render(template, rendered):
    assert render(template, VALUES) == (template if rendered is None and isinstance(template, dict)
                                        else rendered)  # fmt: skip


@rule("schedules E19")
@pytest.mark.parametrize(
    "template", ["{{ event.gone }}", "x {{ event.gone }}", "x {{ event.note }}", "{{ fire.id.y }}"]
)
def test_a_missing_value_raises_and_is_never_an_empty_text(template):
    with pytest.raises(MissingValue) as missing:
        render({"a": [template]}, VALUES)
    assert missing.value.name == template.strip("x {}")
    assert missing.value.params == {"name": missing.value.name, "pointer": "/a/0"}


@rule("schedules E19")
@pytest.mark.parametrize(
    "name",
    [
        "fire.__class__",
        "fire.id.__len__",
        "event.outputs.rows.0",
        "event.outputs.name.Z",
        "event.outputs.rows.pop",
    ],
)
def test_names_walk_objects_of_json_and_never_attributes_or_indexes(name):
    with pytest.raises(MissingValue):
        render(f"{{{{ {name} }}}}", VALUES)


@rule("schedules E19")
def test_an_unknown_name_is_told_with_the_allowed_ones_and_the_nearest():
    (fault,) = check({"inputs": [{"a/b": "{{ event.conut }}"}]}, ALLOWED)
    assert (fault.code, fault.pointer) == ("template_unknown", "/inputs/0/a~1b")
    assert "event.conut" in fault.message
    for name in ALLOWED:
        assert name in fault.message
    assert fault.params["nearest"] == "event.count"


@rule("schedules E19")
@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{{ event.id|upper }}", "template_syntax"),
        ("{{ event.id() }}", "template_syntax"),
        ("{{ event['id'] }}", "template_syntax"),
        ("{{ 1 + 1 }}", "template_syntax"),
        ("{{ event }}", "template_syntax"),
        ("{{ }}", "template_syntax"),
        ("{{ event.id", "template_syntax"),
        ("{{ event.id }}}}", "template_syntax"),
        ("{{ {{ event.id }} }}", "template_syntax"),
        ("{{ settings.SECRET_KEY }}", "template_unknown"),
        ("{{ event.outputs }}", "template_unknown"),
        ({"{{ event.id }}": 1}, "template_key"),
    ],
)
def test_what_is_no_placeholder_is_refused_at_save(template, code):
    assert code in {fault.code for fault in check(template, ALLOWED)}


@rule("schedules E19")
def test_a_template_that_nests_too_deep_is_refused():
    template = "x"
    for _ in range(2000):
        template = [template]
    assert [fault.code for fault in check(template, ALLOWED)] == ["template_depth"]


@rule("schedules E19")
@pytest.mark.parametrize(
    "template",
    ["{{ event.id }}", "a {{event.outputs.rows}} b", {"plain": "} { }}"}, 5, None, "{{fire.id}}"],
)
def test_a_good_template_has_no_faults(template):
    assert check(template, ALLOWED) == []


@given(JSON)
def test_what_passes_the_check_without_placeholders_renders_to_itself(template):
    if not has_placeholders(template) and not check(template, ALLOWED):
        assert render(template, VALUES) == template


@pytest.mark.parametrize(
    ("template", "has"),
    [("x", False), ("{{ fire.id }}", True), ({"a": [{"b": "{{ fire.id }}"}]}, True), (5, False)],
)
def test_has_placeholders(template, has):
    assert has_placeholders(template) is has


@rule("schedules E19")
def test_every_documented_fire_variable_has_a_value_and_no_other_has():
    values = fire_values(
        id="f1", key="daily", kind="scheduled", fire_at=utc("2026-03-29T01:00Z"),
        timezone="Europe/Berlin",
    )  # fmt: skip
    assert set(values) == set(rendering.FIRE_VARIABLES)
    assert values["fire_at"] == "2026-03-29T01:00:00Z"
    assert values["local_at"] == "2026-03-29T03:00:00+02:00"
    assert (values["local_date"], values["local_time"]) == ("2026-03-29", "03:00:00")
    names = rendering.allowed_names()
    assert names == {f"fire.{name}" for name in values}


@rule("schedules E19", "settled 41")
def test_allowed_names_of_an_event_schedule_are_those_of_its_kind():
    names = rendering.allowed_names(triggers.JOB_FINISHED)
    assert {"fire.id", "event.count", "event.ids", "event.job_id", "event.outputs.*"} <= names
    assert check("{{ event.outputs.rows }} {{ event.target }}", names) == []
