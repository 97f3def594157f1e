"""Task functions that the tests enqueue."""

import asyncio
import contextlib
import threading

from coordination.tasks import RetryLater, Snooze, durable
from coordination.tasks.compat import task

calls = []
gate = threading.Event()
started = threading.Event()


def reset():
    calls.clear()
    gate.clear()
    started.clear()


@task
def add(a, b):
    return a + b


@task
async def add_async(a, b):
    await asyncio.sleep(0)
    return a + b


@task
def echo(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@task(takes_context=True)
def attempt_number(context):
    return context.attempt


@task(takes_context=True)
async def attempt_number_async(context, name):
    return [context.attempt, name]


@task
def fail(message="no luck"):
    raise ValueError(message)


@task
async def fail_async():
    raise LookupError("nothing there")


@task
def leave():
    raise SystemExit(3)


@durable(max_attempts=3, backoff=0.01)
def flaky(succeed_at=3):
    calls.append("flaky")
    if len(calls) < succeed_at:
        raise ValueError(f"call {len(calls)}")
    return len(calls)


@durable(max_attempts=5, retry_on=(LookupError,), backoff=0.01)
def picky():
    calls.append("picky")
    raise ValueError("not worth another attempt")


@durable(max_attempts=2)
def later():
    calls.append("later")
    raise RetryLater(0.01)


@task
def snoozes_once():
    calls.append("snooze")
    if len(calls) == 1:
        raise Snooze(0.01)
    return len(calls)


async def _in_a_group(*bodies):
    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        outer.create_task(asyncio.sleep(0))
        for body in bodies:
            inner.create_task(body())


async def _fails(error):
    raise error


@durable(max_attempts=2, retry_on=(LookupError,))
async def later_in_a_group():
    calls.append("later")
    await _in_a_group(lambda: _fails(RetryLater(0.01)))


@task
async def snoozes_once_in_a_group():
    calls.append("snooze")
    if len(calls) == 1:
        await _in_a_group(lambda: _fails(Snooze(0.01)))
    return len(calls)


@durable(max_attempts=3, retry_on=(LookupError,), backoff=0.01)
async def picky_in_a_group(*also):
    """Fails by what is worth another attempt, and by errors of these messages that are not."""
    calls.append("picky")
    wrong = [lambda message=message: _fails(ValueError(message)) for message in also]
    await _in_a_group(lambda: _fails(KeyError("again")), *wrong)


@task
def not_json():
    return object()


@task
def too_large():
    return "x" * 5000


@task
def nothing_to_store():
    return "a\x00b"


@task
def waits():
    started.set()
    assert gate.wait(20)
    return "waited"


@task(takes_context=True)
def waits_and_checks(context):
    started.set()
    while not gate.wait(0.01):
        context.check()
    return "never asked"


async def _checks(context):
    started.set()
    while not gate.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
        context.check()


@task(takes_context=True)
async def waits_and_checks_in_a_group(context):
    """Learns of a cancel by its check alone, as sync bodies do."""
    await _in_a_group(lambda: _checks(context))


@task
async def waits_async():
    started.set()
    try:
        await asyncio.sleep(30)
    finally:
        calls.append("cleaned up")


@durable(atomic=True)
def writes_atomically(name):
    from django.contrib.auth.models import Group  # models are not loaded when tasks are declared

    Group.objects.create(name=name)
    if name == "bad":
        raise ValueError("undo it")
    return Group.objects.filter(name=name).count()


@task(takes_context=True)
def writes_fenced(context, name):
    from django.contrib.auth.models import Group  # as above

    with context.fenced_atomic():
        Group.objects.create(name=name)
        started.set()
        assert gate.wait(20)
    calls.append("committed")
    return name


@task(takes_context=True)
def finishes_itself(context, name, fails_afterwards=False):
    from django.contrib.auth.models import Group  # as above

    with context.fenced_atomic() as gate:
        Group.objects.create(name=name)
        gate.finish(result=f"made {name}")
    calls.append("ended")
    if fails_afterwards:
        raise ValueError("too late to count")
    return "not this"


@task
async def uses_the_orm(name):
    from django.contrib.auth.models import Group  # as above

    await Group.objects.acreate(name=name)
    return await Group.objects.filter(name=name).acount()


@durable(emit=True)
def told():
    return "told"


not_a_task = 3
