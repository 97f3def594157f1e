"""URLs of the demo host: landing page, admin at `/admin/`, the API at `/api/v1/` (settled 29)."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from project.views import landing, my_roundtables

API = "api/v1/"

urlpatterns = [
    path("", landing, name="landing"),
    path("my/", my_roundtables, name="my"),
    path("login/", LoginView.as_view(template_name="project/login.html"), name="login"),
    # Browsers ask for it on pages that name no icon, such as the admin's.
    path("favicon.ico", RedirectView.as_view(url=static("project/icon.svg"))),
    path("admin/", admin.site.urls),
    path(API, include("coordination.api")),
    path(API, include("coordination.tasks.api")),
    path(API, include("schedules.api")),
    path(API, include("roundtable_jobs.api")),
]
