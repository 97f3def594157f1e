"""A host that mounts the cluster's API under a namespace of its own, and views for the edge."""

from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection
from django.http import Http404, JsonResponse
from django.urls import include, path
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.response import Response

from coordination.api import preconditions
from coordination.api.base import BaseView
from coordination.api.permissions import ANYONE, SIGNED_IN
from coordination.api.problems import Code, ProblemError
from coordination.api.serializers import InstantField, StrictSerializer

FAULTS = {
    "django_404": Http404,
    "django_403": PermissionDenied,
    "outage": OperationalError,
    "ours": lambda: ProblemError(Code.STATE_CONFLICT, _("yes"), allowed_states=["done"]),
    "fault": ZeroDivisionError,
}


class Inner(StrictSerializer):
    kind = serializers.CharField(max_length=5)


class Body(StrictSerializer):
    name = serializers.CharField(max_length=10)
    at = InstantField(required=False)
    trigger = Inner(required=False)
    tags = serializers.ListField(child=serializers.CharField(max_length=3), required=False)


class Echo(BaseView):
    needs = {"GET": ANYONE, "POST": ANYONE, "PUT": SIGNED_IN}
    weak_etags = True

    def get(self, request):
        return Response({"word": _("This field is required."), "text": "Grüße"})

    def post(self, request):
        body = Body(data=self.body())
        body.is_valid(raise_exception=True)
        return Response({name: str(value) for name, value in body.validated_data.items()})

    def put(self, request):
        return Response({"seen": preconditions.seen_version(request, self.body(), 7)})

    def delete(self, request):
        return Response({})


class Fault(BaseView):
    needs = {"GET": ANYONE}

    def get(self, request, kind):
        raise FAULTS[kind]()


class Atomic(BaseView):
    needs = {"GET": ANYONE}

    def get(self, request):
        return Response({"atomic": connection.in_atomic_block})


def host_view(request):
    """A view of the host's own, for comparison."""
    return JsonResponse({"atomic": connection.in_atomic_block})


edge = [
    path("atomic/", Atomic.as_view(), name="atomic"),
    path("host/", host_view, name="host"),
    path("echo/", Echo.as_view(), name="echo"),
    path("fault/<str:kind>/", Fault.as_view(), name="fault"),
]
host = [path("v1/", include("coordination.api")), path("v1/", include((edge, "edge")))]
urlpatterns = [path("host/", include((host, "host")))]
