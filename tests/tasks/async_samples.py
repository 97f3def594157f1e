"""Async bodies that leave in ways of their own, and some whose helper threads outlive a cancel."""

import asyncio
import sys
import threading

from asgiref.sync import sync_to_async

from coordination.tasks.compat import task

gate = threading.Event()
started = threading.Event()
returning = threading.Event()
seen = []
PATIENCE_S = 20


def reset():
    gate.clear()
    started.clear()
    returning.clear()
    seen.clear()


def _leave():
    sys.exit(3)


async def _leave_later():
    await asyncio.sleep(0)
    _leave()


@task
async def leaves():
    _leave()


@task
async def leaves_on_a_thread():
    await sync_to_async(_leave)()


@task
async def leaves_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(_leave_later())


@task
async def interrupts():
    raise KeyboardInterrupt


@task
async def waits():
    """Is in the middle of its work while another body leaves."""
    started.set()
    while not gate.is_set():
        await asyncio.sleep(0.01)
    return "fine"


def _work():
    started.set()
    assert gate.wait(PATIENCE_S)
    seen.append("the thread has worked")


@task
async def on_a_helper():
    await asyncio.to_thread(_work)


@task
async def on_the_executor():
    await asyncio.get_running_loop().run_in_executor(None, _work)


@task
async def on_a_free_thread():
    await sync_to_async(_work, thread_sensitive=False)()


@task
async def on_a_helper_of_a_child():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(_work))


@task
async def leaves_a_helper_behind():
    asyncio.get_running_loop().run_in_executor(None, _work)
    returning.set()
    return "did not wait"


@task
async def leaves_a_call_behind():
    running = asyncio.ensure_future(sync_to_async(_work)())
    while not (started.is_set() or running.done()):
        await asyncio.sleep(0.01)
    returning.set()
    return "did not wait"


@task
async def at_once():
    return "at once"


def _fail():
    raise ValueError("of the helper")


@task
async def survives_its_helper():
    found = await asyncio.gather(asyncio.to_thread(_fail), return_exceptions=True)
    return [str(error) for error in found]
