"""Roundtables over REST. Hosts write `path("api/v1/", include("roundtable_jobs.api"))`."""

from roundtable_jobs.api.urls import app_name, urlpatterns

__all__ = ["app_name", "urlpatterns"]
