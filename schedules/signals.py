"""Signals that tell what happened to schedules; observe with them, never decide (D-5).

Sent after the commit with `send_robust`: a receiver that raises is logged and stops nothing,
and a process that dies between commit and signal sends none. Sender is `Schedule`.

`schedule_fired`, `schedule_skipped`, `schedule_failed` carry `schedule_id`, `schedule_key`,
`fire_id`, `fire_at`, `kind`, `outcome`, `reason_code`; failed means failed to start.
`schedule_paused`, `schedule_resumed` carry `schedule_id`, `schedule_key`, `actor_name`.
"""

from __future__ import annotations

from django.dispatch import Signal

schedule_fired = Signal()
schedule_skipped = Signal()
schedule_failed = Signal()
schedule_paused = Signal()
schedule_resumed = Signal()
