"""URLs of the cluster's resources; the prefix is the host's."""

from __future__ import annotations

from django.urls import path

from coordination.api import views

app_name = "coordination_api"
urlpatterns = [
    path("cluster/", views.ClusterView.as_view(), name="cluster"),
    path("workers/", views.WorkerList.as_view(), name="workers"),
    path("leases/", views.LeaseList.as_view(), name="leases"),
    path("leases/<str:name>/history/", views.LeaseHistoryList.as_view(), name="lease-history"),
    path("health/", views.HealthView.as_view(), name="health"),
    path("problems/<str:code>/", views.ProblemPage.as_view(), name="problem"),
]
