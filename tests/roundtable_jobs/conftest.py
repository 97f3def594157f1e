import pytest

from tests.roundtable_jobs.table import seats


@pytest.fixture
def table(settings):
    """Configure one scripted backend; call it to give rules or options."""

    def configure(rules=(), **options):
        # A new object each time: the setting_changed signal drops the backends made before.
        settings.ROUNDTABLE_JOBS = {"SEATS": seats(rules, **options)}

    configure()
    return configure
