"""Task runs over REST. Hosts write `path("api/v1/", include("coordination.tasks.api"))`."""

from coordination.tasks.api.urls import app_name, urlpatterns

__all__ = ["app_name", "urlpatterns"]
