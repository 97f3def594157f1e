"""URLs of schedules and fires; the prefix is the host's."""

from __future__ import annotations

from django.urls import path

from schedules.api import actions, fires, views

app_name = "schedules_api"
urlpatterns = [
    path("schedules/", views.ScheduleList.as_view(), name="schedules"),
    path("schedules/preview/", actions.DraftPreview.as_view(), name="preview"),
    path("schedules/<str:id>/", views.ScheduleDetail.as_view(), name="schedule"),
    path("schedules/<str:id>/status/", views.ScheduleStatus.as_view(), name="status"),
    path("schedules/<str:id>/pause/", actions.Pause.as_view(), name="pause"),
    path("schedules/<str:id>/resume/", actions.Resume.as_view(), name="resume"),
    path("schedules/<str:id>/run/", actions.Run.as_view(), name="run"),
    path("schedules/<str:id>/preview/", actions.SchedulePreview.as_view(), name="schedule-preview"),
    path("fires/", fires.FireList.as_view(), name="fires"),
    path("fires/<str:id>/", fires.FireDetail.as_view(), name="fire"),
]
