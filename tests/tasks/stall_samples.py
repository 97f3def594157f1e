"""Bodies that hang, each in a way of its own, until `gate` opens or they are stopped."""

import asyncio
import contextlib
import threading

from coordination.tasks import durable

calls = []
gate = threading.Event()
started = threading.Event()
PATIENCE_S = 20


def reset():
    calls.clear()
    gate.clear()
    started.clear()


def _first(context):
    calls.append(context.attempt)
    started.set()
    return context.attempt == 1


@durable(takes_context=True, stall_timeout_s=30)
def checks(context):
    """Hangs, but asks whether it may go on."""
    if _first(context):
        while not gate.wait(0.01):
            context.check()
    return context.attempt


@durable(takes_context=True, stall_timeout_s=30)
async def awaits(context):
    """Hangs in the event loop."""
    if _first(context):
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            calls.append("cleaned up")
    return context.attempt


async def _checks(context):
    while not gate.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
        context.check()


@durable(takes_context=True, stall_timeout_s=30)
async def checks_in_a_group(context):
    """Meets the end of its attempt in a child, so the group wraps it."""
    if _first(context):
        async with asyncio.TaskGroup() as group:
            group.create_task(_checks(context))
    return context.attempt


@durable(takes_context=True, stall_timeout_s=30)
def ignores(context):
    """Hangs and asks nobody; then it wants its effect."""
    if _first(context):
        assert gate.wait(PATIENCE_S)
        from django.contrib.auth.models import Group  # models are not loaded at declaration

        Group.objects.create(name="before the fence")
        with context.fenced_atomic():
            Group.objects.create(name="behind the fence")
    return context.attempt


@durable(takes_context=True, stall_timeout_s=30)
def progresses(context):
    """Slow, and says how far it is."""
    _first(context)
    done = 0
    while not gate.wait(0.01):
        done += 1
        context.progress(done, 100, "still at it")
    return context.attempt


@durable(takes_context=True, stall_timeout_s=30)
def slow(context):
    """Asks nobody, and ends in time."""
    _first(context)
    assert gate.wait(PATIENCE_S)
    return context.attempt


@durable(takes_context=True)
def steps_inside(context):
    """Progress inside a fenced transaction goes with its commit."""
    with context.fenced_atomic():
        context.progress(1, 2)
        started.set()
        assert gate.wait(PATIENCE_S)
