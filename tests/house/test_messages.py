"""The catalogues: what is found in sources, what a check refuses, what is compiled."""

import gettext as stdlib_gettext

import pytest

from tests.support.rules import rule
from tools import messages

SOURCE = """
from django.utils.translation import gettext as _, ngettext, pgettext
a = _("Hello %(name)s")
b = ngettext("%(n)s job", "%(n)s jobs", 2)
c = pgettext("verb", "run")
d = _("")
"""
TEMPLATE = """{% load i18n %}<p>{% translate "Plain text" %}</p>
{% blocktranslate count n=n trimmed %}
  one row
{% plural %}
  {{ n }} rows
{% endblocktranslate %}"""


@pytest.fixture
def tree(tmp_path):
    app = tmp_path / "schedules"
    (app / "templates").mkdir(parents=True)
    (app / "views.py").write_text(SOURCE)
    (app / "templates" / "page.html").write_text(TEMPLATE)
    return tmp_path


def run(tree, how):
    return messages.main([how, "--tree", str(tree)])


def translate(tree, old, new):
    path = messages.catalogue(tree, "schedules")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    path.with_suffix(".mo").write_bytes(messages.compiled(path))


def fill(tree):
    run(tree, "--write")
    for text, chinese in [
        ("Hello %(name)s", "你好 %(name)s"),
        ("run", "运行"),
        ("Plain text", "文本"),
    ]:
        translate(tree, f'msgid "{text}"\nmsgstr ""', f'msgid "{text}"\nmsgstr "{chinese}"')
    for plural, chinese in [("%(n)s jobs", "%(n)s 个作业"), ("%(n)s rows", "%(n)s 行")]:
        old = f'msgid_plural "{plural}"\nmsgstr[0] ""'
        translate(tree, old, old[:-2] + f'"{chinese}"')


def test_texts_of_modules_and_templates_are_found_with_context_and_plural(tree):
    found = messages.collect(tree, "schedules")
    assert {key: text.plural for key, text in found.items()} == {
        ("Hello %(name)s", None): None,
        ("%(n)s job", None): "%(n)s jobs",
        ("run", "verb"): None,
        ("Plain text", None): None,
        ("one row", None): "%(n)s rows",
    }


def test_a_new_text_is_written_untranslated_and_fails_the_check(tree, capsys):
    assert run(tree, "--check") == 1
    assert run(tree, "--write") == 1
    assert "is not translated" in capsys.readouterr().err


def test_a_complete_catalogue_passes_and_speaks_chinese(tree):
    fill(tree)
    assert run(tree, "--check") == 0
    with messages.catalogue(tree, "schedules").with_suffix(".mo").open("rb") as file:
        spoken = stdlib_gettext.GNUTranslations(file)
    assert spoken.gettext("Plain text") == "文本"
    assert spoken.pgettext("verb", "run") == "运行"
    assert spoken.ngettext("one row", "%(n)s rows", 5) == "%(n)s 行"


def test_writing_again_changes_nothing_and_keeps_translations(tree):
    fill(tree)
    path = messages.catalogue(tree, "schedules")
    before = path.read_bytes()
    assert run(tree, "--write") == 0
    assert path.read_bytes() == before


def test_a_text_that_vanished_a_placeholder_lost_and_a_stale_binary_are_refused(tree, capsys):
    fill(tree)
    translate(tree, "你好 %(name)s", "你好")
    (tree / "schedules" / "templates" / "page.html").write_text("{% load i18n %}")
    path = messages.catalogue(tree, "schedules")
    path.write_text(path.read_text().replace("运行", "跑"))
    assert run(tree, "--check") == 1
    said = capsys.readouterr().err
    for part in ("placeholders", "'Plain text' is used nowhere", "its .mo was not compiled"):
        assert part in said


@rule("style Words for people")
def test_a_fuzzy_translation_does_not_count(tree, capsys):
    fill(tree)
    translate(tree, 'msgctxt "verb"', '#, fuzzy\nmsgctxt "verb"')
    assert run(tree, "--check") == 1
    assert "fuzzy" in capsys.readouterr().err
