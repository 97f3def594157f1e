"""URLs of the demo host: admin at `/admin/`, the API at `/api/v1/` (settled 29)."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("admin/", admin.site.urls),
]
