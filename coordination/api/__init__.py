"""The REST edge that all three apps share, and the cluster's own resources.

Hosts write `path("api/v1/", include("coordination.api"))`. DRF is imported only under `api/`.
"""

from coordination.api.urls import app_name, urlpatterns

__all__ = ["app_name", "urlpatterns"]
