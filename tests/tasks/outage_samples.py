"""Bodies that lose the connection to our tables in their first attempt."""

import asyncio
import threading

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from coordination.tasks import durable

connecting = set()
gate = threading.Event()
begun = []


def ask(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def end_own_session(attempt):
    if attempt == 1:
        ask("SELECT pg_terminate_backend(pg_backend_pid())")


@durable(takes_context=True)
def cut_off(context):
    end_own_session(context.attempt)
    return context.attempt


@durable(takes_context=True)
async def cut_off_async(context):
    await sync_to_async(end_own_session)(context.attempt)
    return context.attempt


async def _fails_when_cancelled():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("because of the others") from None


async def _cut_off_beside(attempt):
    async with asyncio.TaskGroup() as group:
        if attempt == 1:
            group.create_task(_fails_when_cancelled())
        group.create_task(sync_to_async(end_own_session)(attempt))


@durable(takes_context=True)
async def cut_off_in_a_group(context):
    """The outage is one of two errors of a group in a group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_cut_off_beside(context.attempt))
    return context.attempt


@durable(takes_context=True, atomic=True)
def cut_off_atomic(context):
    end_own_session(context.attempt)
    return context.attempt


@durable(takes_context=True, atomic=True)
def atomic(context):
    return context.attempt


@durable(takes_context=True)
def cancelled_statement(context):
    """The server answers with an OperationalError and stays."""
    ask("SET statement_timeout = '10ms'")
    try:
        ask("SELECT pg_sleep(5)")
    finally:
        ask("SET statement_timeout = 0")


@durable(takes_context=True)
def connects(context):
    """Needs a new connection in the middle of its work."""
    connection.close()
    connecting.add(threading.get_ident())
    try:
        ask("SELECT 1")
    finally:
        connecting.discard(threading.get_ident())
    return context.attempt


@durable(takes_context=True)
def ends_at_the_gate(context, number):
    """Notes each run of its body."""
    begun.append(number)
    gate.wait(20)
    return number


@durable(takes_context=True)
def writes_at_the_gate(context):
    begun.append(context.attempt)
    gate.wait(20)
    Group.objects.create(name="written")
    return context.attempt


@durable
def writes_although_it_promised_not_to():
    with transaction.atomic():
        ask("SET TRANSACTION READ ONLY")
        Group.objects.create(name="written")
