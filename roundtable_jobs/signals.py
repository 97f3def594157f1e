"""What observers may listen to. Sent after commit with `send_robust`; never a duty (D6).

All carry `job_id` (UUID) and `attempt` (int). `round_completed` adds `round` and `consensus`
(percent or None), `job_ended` adds `status`.
"""

from __future__ import annotations

from django.dispatch import Signal

round_completed = Signal()
job_ended = Signal()
