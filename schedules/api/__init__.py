"""Schedules and fires over REST. Hosts write `path("api/v1/", include("schedules.api"))`."""

from schedules.api.urls import app_name, urlpatterns

__all__ = ["app_name", "urlpatterns"]
