"""URLs of roundtables; the prefix is the host's."""

from __future__ import annotations

from django.urls import path

from coordination.api.links import register_job_url
from roundtable_jobs.api import parts, views
from roundtable_jobs.models import RoundtableJob

app_name = "roundtable_jobs_api"
urlpatterns = [
    path("roundtables/", views.RoundtableList.as_view(), name="roundtables"),
    path("roundtables/<str:id>/", views.RoundtableDetail.as_view(), name="roundtable"),
    path("roundtables/<str:id>/turns/", parts.TurnList.as_view(), name="turns"),
    path("roundtables/<str:id>/attempts/", parts.AttemptList.as_view(), name="attempts"),
    path("roundtables/<str:id>/cancel/", views.Cancel.as_view(), name="cancel"),
    path("roundtables/<str:id>/resume/", views.Resume.as_view(), name="resume"),
]
register_job_url(RoundtableJob._meta.label, f"{app_name}:roundtable")
