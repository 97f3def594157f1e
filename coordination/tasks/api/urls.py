"""URLs of task runs; the prefix is the host's."""

from __future__ import annotations

from django.urls import path

from coordination.api.links import register_job_url
from coordination.tasks.api import views
from coordination.tasks.models import TaskRun

app_name = "tasks_api"
urlpatterns = [
    path("tasks/", views.TaskList.as_view(), name="tasks"),
    path("tasks/<str:id>/", views.TaskDetail.as_view(), name="task"),
    path("tasks/<str:id>/cancel/", views.TaskCancel.as_view(), name="task-cancel"),
    path("tasks/<str:id>/retry/", views.TaskRetry.as_view(), name="task-retry"),
]
register_job_url(TaskRun._meta.label, f"{app_name}:task")
