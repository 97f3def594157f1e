"""What a model's answer is worth: cleaned text, JSON, motions. Parsed, never executed. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

MARK = "\n[...]"
BALLOT_KEYS = (
    "motion", "stance", "option", "confidence", "conditions", "reasons", "cites", "blocking",
)  # fmt: skip
ENTRIES_MAX, ENTRY_BYTES = 20, 2000
OPTIONS_MAX = 8
OPTION_BYTES = 200


def clean(text: str, *, others: Iterable[str], max_bytes: int) -> str:
    """Return the speaker's own words: cut where they speak as somebody else, and at the limit.

    `others` are the names of the other people at the table. A line that begins with one of
    them and a colon starts words put into their mouth. NUL characters go: no database of ours
    stores them in text.
    """
    text = storable_text(text)
    names = "|".join(re.escape(name) for name in others if name)
    if names:
        # A model marks its lines in several ways: "Ana:", "**Ana**:", "[Ana]:".
        pattern = rf"(?im)^[ \t]*[*_\[#> ]*(?:{names})[*_\] ]*[ \t]*:"
        found = re.search(pattern, text)
        if found:
            text = text[: found.start()]
    return shorten(text.strip(), max_bytes)


def shorten(text: str, max_bytes: int) -> str:
    """Return `text` in at most `max_bytes` bytes of UTF-8, marked where it was cut."""
    stored = text.encode()
    if len(stored) <= max_bytes:
        return text
    return stored[: max(0, max_bytes - len(MARK))].decode("utf-8", "ignore") + MARK


def json_object(text: str) -> Mapping[str, object] | None:
    """Return the first JSON object in an answer, or None; fences and chatter around it go."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    for match in re.finditer(r"\{", text):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found: Mapping[str, object] = _storable(value)
            return found
    return None


def ballot(found: Mapping[str, object]) -> dict[str, object]:
    """Return the known keys of a ballot, its lists and texts shortened to what is worth keeping."""
    kept: dict[str, object] = {}
    for key in BALLOT_KEYS:
        value = found.get(key)
        if isinstance(value, str):
            value = shorten(value, ENTRY_BYTES)
        elif isinstance(value, list):
            value = [
                shorten(one, ENTRY_BYTES) if isinstance(one, str) else one
                for one in value[:ENTRIES_MAX]
                if isinstance(one, (str, int, float, bool))
            ]
        elif isinstance(value, dict):
            value = None
        if key in found:
            kept[key] = value
    return kept


def motion(text: str, motion_id: str) -> dict[str, object] | None:
    """Return {"id", "text", "options"} of a leader's answer, or None when it states nothing.

    Plain text is a motion without options. Options are 2..8 different short texts, else none.
    """
    found = json_object(text)
    if found is None:
        stated: object = text
        options: object = []
    else:
        stated, options = found.get("text"), found.get("options")
    if not isinstance(stated, str) or not stated.strip():
        return None
    return {"id": motion_id, "text": stated.strip(), "options": _options(options)}


def _options(raw: object) -> list[str]:
    if not isinstance(raw, list) or not all(isinstance(one, str) for one in raw):
        return []
    options = list(dict.fromkeys(shorten(one.strip(), OPTION_BYTES) for one in raw if one.strip()))
    return options if 2 <= len(options) <= OPTIONS_MAX else []


def _storable(value: Any) -> Any:
    """Replace what JSON allows and databases refuse: NUL, lone surrogates, infinite numbers."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, dict):
        return {storable_text(key): _storable(one) for key, one in value.items()}
    return value


def storable_text(text: str) -> str:
    """Return `text` without NUL and lone surrogates, which no text column of ours holds."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _refuse(constant: str) -> object:
    raise ValueError(constant)
