"""Bodies that kill their own process before the n-th statement of their first attempt."""

import os
import signal
import time

from coordination.tasks import durable
from coordination.testing import CrashPoint


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # never go on past the point


def arm(context, n):
    """From here on this thread's statements are counted, the engine's own included."""
    if context.attempt == 1:
        CrashPoint(n, action=die).__enter__()


def effect(context):
    """Business rows of the host: more than one statement, one of them in a savepoint."""
    from django.contrib.auth.models import Group  # models are not loaded at declaration
    from django.db import transaction

    Group.objects.create(name=f"one {context.claim.job_id}")
    with transaction.atomic():
        Group.objects.create(name=f"two {context.claim.job_id}")


@durable(takes_context=True, atomic=True)
def by_option(context, n):
    """Body and finish are one transaction, by the option."""
    arm(context, n)
    effect(context)
    return context.attempt


@durable(takes_context=True)
def by_gate(context, n):
    """Body and finish are one transaction, by hand."""
    arm(context, n)
    with context.fenced_atomic() as gate:
        gate.update(progress={"n": 1})
        effect(context)
        gate.finish(result=context.attempt)
