"""Users for tests of pages and REST: who they are and which permissions they hold."""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission


def user(name, *permissions, staff=True, superuser=False):
    """Make a user with exactly these permissions, each as "app_label.codename"."""
    made = get_user_model().objects.create_user(
        name, password="secret", is_staff=staff, is_superuser=superuser
    )
    for permission in permissions:
        label, codename = permission.split(".")
        made.user_permissions.add(
            Permission.objects.get(content_type__app_label=label, codename=codename)
        )
    return made
