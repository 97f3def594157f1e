import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundtable_jobs.snapshot import (
    Catalog,
    Limits,
    SnapshotBroken,
    SnapshotInvalid,
    canonical,
    digest,
    load,
    parse,
)
from tests.roundtable_jobs.samples import CATALOG, raw_snapshot, snapshot
from tests.support.rules import rule


def faults_of(raw, catalog=CATALOG):
    with pytest.raises(SnapshotInvalid) as caught:
        parse(raw, catalog)
    return {fault.pointer: fault.code for fault in caught.value.faults}


@rule("roundtable 9")
def test_defaults_are_written_in_at_create():
    stored = parse({k: v for k, v in raw_snapshot().items() if k != "rounds"}, CATALOG).as_json()
    assert stored["schema"] == 1
    assert stored["rounds"] == {"min": 2, "max": 6}
    assert stored["deadline_s"] == 3600
    assert stored["turn_timeout_s"] == 120
    assert stored["consensus"] == {
        "threshold": 75,
        "quorum": "2/3",
        "stability": 85,
        "calibration": "reconcile",
    }
    assert stored["budget"]["tokens"] == 200_000
    assert stored["source"] is None


@rule("roundtable 3")
def test_a_stored_snapshot_holds_exactly_the_fields_of_the_shape():
    stored = snapshot(source={"draft_id": "d", "draft_version": 12}).as_json()
    assert set(stored) == {
        "schema", "topic", "context", "language", "mode", "seed", "prompt_version", "leader",
        "seats", "rounds", "order", "blind_first", "anonymous_ballots", "consensus", "budget",
        "deadline_s", "turn_timeout_s", "chain", "source",
    }  # fmt: skip
    assert set(stored["seats"][0]) == {
        "agent_id", "name", "persona", "stance", "backend", "model", "params", "weight",
    }  # fmt: skip
    assert set(stored["leader"]) == {
        "agent_id", "name", "backend", "model", "persona", "deputy",
    }  # fmt: skip


def test_what_is_stored_loads_to_the_same_snapshot():
    one = snapshot(seats=[*raw_snapshot()["seats"][:2], {"agent_id": "z", "model": "m/x:1"}])
    stored = json.loads(json.dumps(one.as_json()))
    assert load(stored, digest(stored), 1, CATALOG) == one


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"topic": ""}, "/topic", "empty"),
        ({"topic": "é" * 4097}, "/topic", "too_long"),
        ({"topic": "a\x00b"}, "/topic", "characters"),
        ({"topic": "a\ud800b"}, "/topic", "characters"),
        ({"topic": 5}, "/topic", "type"),
        ({"topik": "x"}, "/topik", "unknown_field"),
        ({"a/b~c": "x"}, "/a~1b~0c", "unknown_field"),
        ({"seats": "none"}, "/seats", "type"),
        ({"seats": []}, "/seats", "items"),
        ({"rounds": {"min": 4, "max": 3}}, "/rounds/min", "range"),
        ({"rounds": {"max": True}}, "/rounds/max", "type"),
        ({"seed": -1}, "/seed", "range"),
        ({"order": "random"}, "/order", "choice"),
        ({"blind_first": "yes"}, "/blind_first", "type"),
        ({"consensus": {"quorum": "two"}}, "/consensus/quorum", "format"),
        ({"consensus": {"quorum": "3/2"}}, "/consensus/quorum", "range"),
        ({"budget": {"tokens": 0}}, "/budget/tokens", "range"),
        ({"schema": 2}, "/schema", "choice"),
        ({"prompt_version": "1999.1"}, "/prompt_version", "choice"),
        ({"leader": None}, "/leader", "type"),
        ({"source": {"draft_id": "d"}}, "/source/draft_version", "required"),
        ({"chain": [{"agent_id": "nobody"}]}, "/chain/0/agent_id", "choice"),
        ({"chain": [{"schema": {"a": "\x00"}}]}, "/chain/0/schema", "characters"),
        ({"chain": [{"schema": {"a": float("inf")}}]}, "/chain/0/schema", "characters"),
        ({"chain": [{"schema": {"a": "\ud800"}}]}, "/chain/0/schema", "characters"),
    ],
)
def test_a_fault_is_named_by_its_pointer(change, pointer, code):
    assert faults_of(raw_snapshot(**change))[pointer] == code


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("backend", "elsewhere", "unknown_backend"),
        ("backend", "http://x", "format"),
        ("model", "https://evil/x", "format"),
        ("api_key", "secret", "unknown_field"),
        ("base_url", "http://x", "unknown_field"),
        ("name", "Ben", "duplicate"),
        ("agent_id", "lead", "duplicate"),
        ("agent_id", "a b", "format"),
        ("params", {"temperature": 9}, None),
        ("params", {"stop": "x"}, None),
        ("weight", 0, "range"),
    ],
)
@rule("roundtable 3")
def test_a_wrong_seat_is_refused_at_its_pointer(field, value, code):
    raw = raw_snapshot()
    raw["seats"][2][field] = value
    faults = faults_of(raw)
    if code is None:
        (key,) = value
        assert f"/seats/2/params/{key}" in faults
    else:
        assert faults[f"/seats/2/{field}"] == code


def test_a_model_outside_the_allow_list_is_refused():
    raw = raw_snapshot()
    raw["seats"][0].update(backend="narrow", model="other")
    assert faults_of(raw) == {"/seats/0/model": "model_not_allowed"}


def test_a_mode_of_a_later_release_is_refused_with_what_is_available():
    with pytest.raises(SnapshotInvalid) as caught:
        parse(raw_snapshot(mode="debate"), CATALOG)
    (fault,) = caught.value.faults
    assert fault.code == "mode_unavailable"
    assert fault.params["available"] == ["round_robin"]


def test_all_faults_come_at_once():
    assert len(faults_of({"mode": 1, "x": 2})) >= 5


def test_a_deputy_must_sit_at_the_table():
    raw = raw_snapshot(leader={"agent_id": "lead", "model": "m", "deputy": "nobody"})
    assert faults_of(raw) == {"/leader/deputy": "choice"}


def test_equal_values_have_one_canonical_form_whatever_their_order():
    assert canonical({"b": [1, 2], "a": "é"}) == '{"a":"é","b":[1,2]}'.encode()
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda leaf: st.lists(leaf) | st.dictionaries(st.text(), leaf),
        max_leaves=20,
    )
)
def test_any_json_is_refused_or_parsed_and_never_crashes(raw):
    with pytest.raises(SnapshotInvalid):
        parse(raw, CATALOG)


def broken(stored, sha=None, schema=1, catalog=CATALOG):
    with pytest.raises(SnapshotBroken) as caught:
        load(stored, digest(stored) if sha is None else sha, schema, catalog)
    return caught.value.code


@rule("roundtable C13")
def test_a_broken_snapshot_is_named_by_one_of_four_codes():
    good = snapshot().as_json()
    assert broken(None, "x") == "snapshot_missing"
    assert broken([1]) == "corrupt"
    assert broken("text") == "corrupt"
    assert broken({**good, "schema": 9}) == "unsupported"
    assert broken(good, schema=9) == "unsupported"
    assert broken(good, sha="0" * 64) == "corrupt"
    assert broken({**good, "topic": 5}) == "corrupt"
    assert broken({**good, "prompt_version": "1999.1"}) == "unsupported"
    assert broken(good, catalog=Catalog({}, ("round_robin",))) == "unknown_backend"
    assert broken(good, catalog=Catalog({"default": ("n",)}, ("round_robin",))) == "unknown_backend"
    assert broken(good, catalog=Catalog({"default": None}, ())) == "unsupported"


@rule("roundtable C13")
def test_the_checks_of_a_stored_snapshot_have_one_order():
    # An unknown schema is told before a wrong digest: the digest of another schema says nothing.
    assert broken({"schema": 9}, sha="0") == "unsupported"
    assert broken({"schema": 1}, sha="0") == "corrupt"


def test_a_lower_limit_of_today_breaks_no_stored_job():
    stored = snapshot().as_json()
    narrow = Catalog({"default": None}, ("round_robin",), Limits(topic_bytes=3, seats_max=2))
    assert load(stored, digest(stored), 1, narrow).topic == snapshot().topic


PURE = [
    "snapshot",
    "shapes",
    "projection",
    "consensus",
    "novelty",
    "transcript",
    "prompts",
    "speech",
    "reading",
    "modes",
    "modes.round_robin",
    "seats",
    "seats.scripted",
    "seats.retrying",
]


@rule("architecture 3")
@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_without_settings(module):
    code = (
        f"import roundtable_jobs.{module}; from django.conf import settings; "
        "raise SystemExit(settings.configured)"
    )
    bare = {"PATH": "/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", code], check=False, env=bare, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
