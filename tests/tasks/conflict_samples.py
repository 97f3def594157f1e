"""Bodies that the server refuses as it does the loser of a conflict."""

from coordination.tasks import durable

calls = []
between = []
"""What happens before the server refuses, once each."""
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
        while between:
            between.pop()()
        _refused(code)
    return len(calls)


@durable(atomic=True)
def atomic(code, times):
    return _body(code, times)


@durable
def plain(code, times):
    return _body(code, times)


@durable(atomic=True)
def refused_after_the_commit(code):
    from django.db import transaction  # as above

    transaction.on_commit(lambda: _refused(code))
    return _body(code, 0)


def _cancelled_meanwhile(context):
    from django.contrib.auth.models import Group  # as above
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    calls.append(context.attempt)
    Group.objects.create(name="effect")
    while between:
        between.pop()()


@durable(takes_context=True)
def gated_above_read_committed(context):
    with context.fenced_atomic() as gate:
        _cancelled_meanwhile(context)
        gate.finish(result=1)


@durable(takes_context=True, atomic=True)
def atomic_above_read_committed(context):
    _cancelled_meanwhile(context)
