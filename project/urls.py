"""URLs of the demo host: landing page, admin at `/admin/`, the API at `/api/v1/` (settled 29)."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from project.views import landing

API = "api/v1/"

urlpatterns = [
    path("", landing, name="landing"),
    path("admin/", admin.site.urls),
    path(API, include("coordination.api")),
    path(API, include("coordination.tasks.api")),
    path(API, include("schedules.api")),
    path(API, include("roundtable_jobs.api")),
]
