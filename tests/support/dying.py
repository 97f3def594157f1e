"""`python -m tests.support.dying by_option`: a worker killed before each statement of a body.

Prints one JSON line for each statement: how the worker ended, what it left, and what stood there
after the next worker. This process never connects; each step is a forked child, so that a kill
takes a whole process and a connection with it, as in real life, without a start for each.
"""

import json
import os
import signal
import sys
import time

import django

BOUND_S = 20.0


def main(style):
    """Kill before statement 1, 2, 3 ... until the body gets through."""
    django.setup()
    n, code = 0, None
    while code != 0:
        n += 1
        owner = f"dying-{style}-{n}"
        run = in_child(lambda n=n: enqueue(style, n))
        code = in_child(lambda owner=owner, run=run: work(run, owner), told=False)
        left = in_child(lambda run=run: state(run))
        after = in_child(lambda owner=owner, run=run: recover(run, owner))
        print(json.dumps({"n": n, "code": code, "left": left, "after": after}), flush=True)


def enqueue(style, n):
    from tests.tasks import gate_samples

    return str(getattr(gate_samples, style).enqueue(n).id)


def work(run, owner):
    from tests.support.engine import run_until_ended

    run_until_ended(run, owner=owner)


def recover(run, owner):
    """What the next worker does: take the dead one over, and run what it finds."""
    from coordination import claims
    from coordination.models import EvidenceClass

    until = time.monotonic() + BOUND_S
    while claims.take_over(owner, EvidenceClass.SILENT).locked:
        assert time.monotonic() < until
    work(run, f"{owner}-next")
    return state(run)


def state(run):
    from django.contrib.auth.models import Group

    from coordination.tasks.models import TaskRun

    row = TaskRun.objects.get(pk=run)
    effects = Group.objects.filter(name__endswith=run).count()
    return {"status": row.status, "attempt": row.attempt, "result": row.result, "effects": effects}


def in_child(function, *, told=True):
    """Run `function` in a forked child; return its JSON result, or its exit code."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.close(read)
            os.write(write, json.dumps(function()).encode())
            code = 0
        finally:
            os._exit(code)  # nothing of the parent's ends is run here
    os.close(write)
    code = wait_for(pid)
    with os.fdopen(read) as answer:
        text = answer.read()
    if not told:
        return code
    assert code == 0, f"a step ended with {code}"
    return json.loads(text)


def wait_for(pid):
    """The exit code of a child, negative for a signal; it is killed when it takes too long."""
    until = time.monotonic() + BOUND_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"a child took longer than {BOUND_S} s")
        time.sleep(0.005)


if __name__ == "__main__":
    main(sys.argv[1])
