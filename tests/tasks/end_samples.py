"""Bodies that end, or fail to end, in ways that nobody should copy."""

from coordination.tasks import durable

calls = []


def _effect(context):
    from django.contrib.auth.models import Group  # models are not loaded at declaration

    calls.append(context.attempt)
    Group.objects.create(name=f"effect {len(calls)}")


@durable(takes_context=True)
def leaves_autocommit_off(context):
    from django.db import transaction  # as above

    transaction.set_autocommit(False)
    _effect(context)
    transaction.commit()
    return context.attempt


@durable(takes_context=True)
def leaves_a_block_open(context):
    from django.db import transaction  # as above

    transaction.atomic().__enter__()
    _effect(context)
    return context.attempt


@durable(takes_context=True)
def gates_without_autocommit(context):
    from django.db import transaction  # as above

    transaction.set_autocommit(False)
    with context.fenced_atomic() as gate:
        _effect(context)
        gate.finish(result=context.attempt)


@durable(takes_context=True)
def undoes_its_end(context):
    from django.db import transaction  # as above

    from coordination import claims

    with context.fenced_atomic():
        _effect(context)
        try:
            with transaction.atomic():
                claims.finish(context.claim, result=1)
                raise KeyError
        except KeyError:
            pass


@durable(takes_context=True, atomic=True)
def ends_twice(context):
    from coordination import claims  # as above

    _effect(context)
    claims.finish(context.claim, result=1)
    return 2


@durable(takes_context=True)
def interrupts(context):
    _effect(context)
    raise KeyboardInterrupt


@durable(takes_context=True)
def hook_raises_after_its_end(context):
    from django.db import transaction  # as above

    with context.fenced_atomic() as gate:
        _effect(context)
        transaction.on_commit(_broken)
        gate.finish(result=context.attempt)


def _broken():
    raise ValueError("a hook of the host")
