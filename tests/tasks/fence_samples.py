"""Bodies that meet the end of their attempt in places where an exception gets lost."""

import asyncio
import threading
from contextvars import ContextVar

from coordination.tasks.compat import task

gate = threading.Event()
started = threading.Event()
seen = []


def reset():
    gate.clear()
    started.clear()
    seen.clear()


async def _child(context):
    started.set()
    while not gate.is_set():
        await asyncio.sleep(0.01)
    context.check()
    seen.append("passed its check")


def _wait_and_check(context):
    started.set()
    gate.wait(10)
    context.check()
    seen.append("passed its check")


@task(takes_context=True)
async def in_a_group(context):
    async with asyncio.TaskGroup() as group:
        group.create_task(_child(context))


@task(takes_context=True)
async def in_a_group_of_groups(context):
    async with asyncio.TaskGroup() as group:
        group.create_task(in_a_group.func(context))


@task(takes_context=True)
async def gathered(context):
    found = await asyncio.gather(_child(context), return_exceptions=True)
    seen.append(type(found[0]).__name__)
    return "went on"


@task(takes_context=True)
def on_a_thread(context):
    return context.run_in_thread(_wait_and_check, context)


@task(takes_context=True)
def on_a_bare_thread(context):
    thread = threading.Thread(target=_note_the_end, args=(context,))
    thread.start()
    thread.join(10)
    return "went on"


here = ContextVar("here", default="nowhere")


@task(takes_context=True)
def in_the_context(context):
    """A thread of the context sees what its body has set, translations for example."""
    here.set("in the body")
    return context.run_in_thread(here.get)


@task(takes_context=True)
def begins_a_thread_too_late(context):
    started.set()
    gate.wait(10)
    return context.run_in_thread(seen.append, "the thread ran")


def _note_the_end(context):
    try:
        _wait_and_check(context)
    except BaseException as error:
        seen.append(type(error).__name__)


@task(takes_context=True)
def swallows_everything(context):
    try:
        _wait_and_check(context)
    except BaseException:
        seen.append("swallowed")
    return "went on"
