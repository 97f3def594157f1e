"""`make messages`: the catalogues of every app, complete and compiled, without gettext's binaries.

`--write` brings each `locale/zh_Hans/LC_MESSAGES/django.po` up to date with the sources (new texts
come in untranslated, vanished ones go) and compiles it. `--check` changes nothing and fails when a
text is missing, untranslated, fuzzy or unused, when placeholders differ, or when the compiled file
is not that of the catalogue.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.conf import settings
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
APPS = ("coordination", "schedules", "roundtable_jobs", "project")
LOCALE = "zh_Hans"
KEYWORDS = {
    "_": None,
    "gettext": None,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext": (1, 2),
    "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
    "npgettext_lazy": ((1, "c"), 2, 3),
}
PLACEHOLDER = re.compile(r"%\((\w+)\)[sd]|%([sd])|\{(\w*)\}")

# Dates and the version of a tool would change the file, and every branch's, at each run.
HEADERS = [
    ("Language", LOCALE),
    ("MIME-Version", "1.0"),
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Transfer-Encoding", "8bit"),
    ("Plural-Forms", "nplurals=1; plural=0;"),
]

Key = tuple[str, str | None]  # (text, context)


class Steady(Catalog):
    """A catalogue whose header says only what the texts need."""

    def __init__(self, app: str, messages: Iterable[Message] = ()) -> None:
        """Take over the messages of another catalogue."""
        super().__init__(locale=LOCALE, domain="django", fuzzy=False)
        self.header_comment = f"# Chinese (simplified) texts of {app}."
        for item in messages:
            if item.id:
                self.add(item.id, item.string, context=item.context, flags=item.flags)

    @property  # type: ignore[misc]  # the parent's is settable; this one is fixed on purpose
    def mime_headers(self) -> list[tuple[str, str]]:
        """The constant header."""
        return HEADERS


@dataclass
class Text:
    """One text to translate: its plural, and where it stands."""

    plural: str | None = None
    places: list[tuple[str, int]] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Check or write the catalogue of every app; 1 when a check finds anything."""
    parser = argparse.ArgumentParser(prog="make messages", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true")
    group.add_argument("--write", action="store_true")
    parser.add_argument("--tree", type=Path, default=ROOT)
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    total = 0
    for app in APPS:
        texts = collect(options.tree, app)
        total += len(texts)
        if options.write and texts:
            write(options.tree, app, texts)
        wrong += problems(options.tree, app, texts)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"messages: {total} texts, {len(wrong)} problem(s) in {LOCALE}")
    return 1 if wrong else 0


def collect(tree: Path, app: str) -> dict[Key, Text]:
    """Every translatable text of an app's modules and templates."""
    found: dict[Key, Text] = {}
    for file in sorted((tree / app).rglob("*")):
        place = file.relative_to(tree).as_posix()
        if "/migrations/" in place or "/locale/" in place:
            continue
        if file.suffix == ".py":
            source = file.read_text(encoding="utf-8")
        elif file.suffix in (".html", ".txt") and "/templates/" in place:
            source = _template(file)
        else:
            continue
        for line, key, plural in _texts(source):
            text = found.setdefault(key, Text())
            text.plural = text.plural or plural
            text.places.append((place, line))
    return found


def _template(file: Path) -> str:
    if not settings.configured:
        settings.configure(USE_I18N=True)
    # Lines that are not texts come back as rows of X, which are no Python but do no harm.
    return templatize(file.read_text(encoding="utf-8"), origin=str(file))


def _texts(source: str) -> Iterator[tuple[int, Key, str | None]]:
    stream = io.BytesIO(source.encode())
    for line, message, _comments, context in extract("python", stream, keywords=KEYWORDS):
        parts = message if isinstance(message, tuple) else (message,)
        if parts and parts[0]:
            plural = parts[1] if len(parts) > 1 else None
            yield line, (str(parts[0]), context), plural


def catalogue(tree: Path, app: str) -> Path:
    """Where an app's catalogue stands."""
    return tree / app / "locale" / LOCALE / "LC_MESSAGES" / "django.po"


def _read(path: Path) -> Catalog:
    if not path.exists():
        return Catalog(locale=LOCALE, domain="django")
    with path.open("rb") as file:
        return read_po(file, locale=LOCALE, domain="django", abort_invalid=True)


def write(tree: Path, app: str, texts: dict[Key, Text]) -> None:
    """Write the catalogue with the texts of today, keeping translations, and compile it."""
    path = catalogue(tree, app)
    old = _read(path)
    new = Steady(app)
    for (text, context), found in sorted(texts.items(), key=lambda item: item[1].places[0]):
        before = old.get(text, context)
        kept = _strings(before.string if before is not None else "")
        if found.plural:
            new.add((text, found.plural), kept, context=context, flags=_flags(text))
        else:
            new.add(text, kept[0], context=context, flags=_flags(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_po(new))
    path.with_suffix(".mo").write_bytes(compiled(path))


def _flags(text: str) -> set[str]:
    return {"python-format"} if re.search(r"%(\(\w+\))?[sd]", text) else set()


def _po(catalog: Catalog) -> bytes:
    out = io.BytesIO()
    write_po(out, catalog, width=98, no_location=True, omit_header=False)
    return out.getvalue()


def compiled(path: Path) -> bytes:
    """The bytes of the compiled catalogue that belongs to a `.po` file."""
    out = io.BytesIO()
    write_mo(out, Steady("", _read(path)))
    return out.getvalue()


def problems(tree: Path, app: str, texts: dict[Key, Text]) -> Iterator[str]:
    """Yield what keeps an app's catalogue from being complete."""
    path = catalogue(tree, app)
    name = path.relative_to(tree).as_posix()
    if not texts and not path.exists():
        return
    known = {(_singular(item), item.context): item for item in _read(path) if item.id}
    for (text, context), found in texts.items():
        item = known.get((text, context))
        place = ":".join(map(str, found.places[0]))
        if item is None:
            yield f"{name}: {text!r} of {place} is missing; run `make messages`"
        elif not all(_strings(item.string)):
            yield f"{name}: {text!r} of {place} is not translated"
        elif item.fuzzy:
            yield f"{name}: {text!r} is marked fuzzy"
        elif wrong := _placeholders(item):
            yield f"{name}: {text!r}: {wrong}"
    for text, context in known:
        if (text, context) not in texts:
            yield f"{name}: {text!r} is used nowhere; run `make messages`"
    binary = path.with_suffix(".mo")
    if not binary.exists() or binary.read_bytes() != compiled(path):
        yield f"{name}: its .mo was not compiled from it; run `make messages`"


def _strings(value: object) -> tuple[str, ...]:
    """A message's text or texts, whichever it has, as a tuple."""
    return tuple(map(str, value)) if isinstance(value, tuple | list) else (str(value or ""),)


def _singular(item: Message) -> str:
    return _strings(item.id)[0]


def _placeholders(item: Message) -> str:
    ids, strings = _strings(item.id), _strings(item.string)
    wanted = {found for text in ids for found in PLACEHOLDER.findall(text)}
    for string in strings:
        has = set(PLACEHOLDER.findall(string))
        if has - wanted or (len(ids) == 1 and wanted - has):
            return f"the placeholders of {string!r} differ"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
