"""The browser itself: without it, the tests beside this one would say nothing."""

from tests.support.browser import violations


def test_axe_finds_what_is_wrong_and_foreign_requests_are_stopped(page):
    page.set_content(
        "<html><body><img src='http://example.invalid/x.png'><input><script>lost()</script>"
    )
    page.wait_for_load_state()
    found = {name for name, _where in violations(page)}
    assert {"image-alt", "label", "html-has-lang"} <= found
    assert any("example.invalid" in problem for problem in page.problems)
    assert any("lost is not defined" in problem for problem in page.problems)
