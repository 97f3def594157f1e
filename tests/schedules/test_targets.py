"""Targets: every task of the host, what hosts register, and the inputs that they take."""

import pytest

from coordination.tasks.models import TaskRun
from schedules import fires, targets
from schedules.errors import TargetInputError, TargetMissing
from schedules.models import ScheduleFire
from tests.support import firing
from tests.support.rules import rule


@rule("architecture 4")
def test_every_task_is_a_target_under_its_path():
    found = targets.get("project.tasks.pulse")
    assert found.name == "project.tasks.pulse"
    assert "project.tasks.pulse" in {item.name for item in targets.all_targets()}


@pytest.mark.parametrize(
    "name", ["nothing", "no.such.module", "project.tasks.nothing", "project.tasks.PULSE_S", ""]
)
def test_a_path_that_is_no_task_is_no_target(name):
    with pytest.raises(TargetMissing):
        targets.get(name)


@pytest.mark.parametrize(
    ("inputs", "pointer"),
    [({"secnds": 1}, "/secnds"), ({"seconds": float("nan")}, "/seconds")],
)
def test_inputs_that_do_not_fit_the_function_name_the_argument(inputs, pointer):
    with pytest.raises(TargetInputError) as caught:
        targets.get("project.tasks.pulse").validate(inputs)
    assert caught.value.pointer == pointer


def test_a_missing_argument_is_named():
    with pytest.raises(TargetInputError, match="version"):
        targets.get("project.tasks.import_prices").validate({"merged": 1})
    targets.get("project.tasks.fetch_rates").validate({})


def test_a_name_can_be_registered_once():
    with firing.recorder() as first:
        targets.register(first)
        with pytest.raises(targets.DuplicateTarget):
            targets.register(firing.Recorder())
        assert first in targets.registered()
    assert first not in targets.registered()


@pytest.mark.django_db
@rule("architecture 5", "settled 33")
def test_tasks_of_a_batch_are_enqueued_together_with_the_fire_as_key():
    for n in range(3):
        row = firing.schedule(
            f"s{n}", target="project.tasks.pulse", inputs={"seconds": n}, priority=n
        )
        firing.overdue(row)
    fires.fire_batch(firing.leader().guard())
    runs = {run.idempotency_key: run for run in TaskRun.objects.all()}
    found = ScheduleFire.objects.order_by("schedule_key")
    assert [fire.outcome for fire in found] == ["started"] * 3
    for n, fire in enumerate(found):
        run = runs[str(fire.pk)]
        assert (run.pk, run.kind, run.hooked) == (fire.run_id, "project.tasks.pulse", True)
        assert (run.kwargs, run.priority) == ({"seconds": n}, n)
        assert run.origin["fire"] == str(fire.pk)
        assert run.origin["schedule_key"] == fire.schedule_key
