"""A row that somebody else has locked, in a thread and on a connection of its own."""

import contextlib
import threading

from django.db import connections, transaction

WAIT_S = 30


@contextlib.contextmanager
def held_row(model, pk):
    """Hold `SELECT ... FOR UPDATE` on one row until the block ends."""
    locked, let_go = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic():
                model.objects.select_for_update().get(pk=pk)
                locked.set()
                let_go.wait(WAIT_S)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(WAIT_S)
    try:
        yield
    finally:
        let_go.set()
        thread.join(WAIT_S)
