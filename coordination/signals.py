"""Signals to observe a worker process; they decide nothing (D-5).

Sent with `send_robust` after the fact, on the thread on which it happened: a receiver that
raises or is slow never changes an outcome, but should be quick. Those of a trip (`fenced`, and the
`leader_lost` that comes with it) are sent on a thread of their own, which delays no trip.
Arguments are frozen by a test.

- `leader_acquired` and `leader_lost`: `name`, `owner`, `epoch`. Sender: `Leadership`.
- `fenced`: `why`, `generation`; `worker_joined` and `worker_left`: `owner`, `generation`. Their
  senders are classes of `coordination.coordinator`; connect without a sender.
"""

from __future__ import annotations

from django.dispatch import Signal

leader_acquired = Signal()
leader_lost = Signal()
fenced = Signal()
worker_joined = Signal()
worker_left = Signal()
