"""Bodies that the server refuses as it does the loser of a conflict."""

from coordination.tasks import durable

calls = []
DEADLOCK, SERIALIZATION = "40P01", "40001"


def _refused(code):
    from django.db import connection  # connections are not there yet at declaration

    with connection.cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")


def _body(code, times):
    from django.contrib.auth.models import Group  # as above

    calls.append(code)
    Group.objects.create(name=f"effect {len(calls)}")
    if len(calls) <= times:
        _refused(code)
    return len(calls)


@durable(atomic=True)
def atomic(code, times):
    return _body(code, times)


@durable
def plain(code, times):
    return _body(code, times)
