"""Addresses of the API's own resources, wherever the host has mounted them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from rest_framework.request import Request


def path_to(request: HttpRequest | Request, name: str, **kwargs: Any) -> str | None:
    """Return the path of the URL `name` ("schedules_api:schedule"), or None when not mounted.

    A host may include our URLs inside a namespace of its own; the namespaces around the
    present request are tried first, then none.
    """
    match = request.resolver_match
    around = list(match.namespaces[:-1]) if match else []
    wanted = {key: str(value) for key, value in kwargs.items()}
    for depth in range(len(around), -1, -1):
        try:
            return reverse(":".join((*around[:depth], name)), kwargs=wanted)
        except NoReverseMatch:
            continue
    return None


def location(path: str | None) -> dict[str, str]:
    """Return the Location header for a path that `path_to` found; none for one that it did not."""
    return {"Location": path} if path else {}


def problem_type(request: HttpRequest | Request, code: str) -> str:
    """Return the `type` of a problem: its help page, or `about:blank` where none is mounted."""
    return path_to(request, "coordination_api:problem", code=code) or "about:blank"


_job_urls: dict[str, str] = {}


def register_job_url(model_label: str, name: str) -> None:
    """Say which URL shows a job of a LeasedJob model; called by the module of its URLs.

    `name` takes the job's id as `id`. Hosts may register their own models.
    """
    _job_urls[model_label.lower()] = name


def job_path(request: HttpRequest | Request, model_label: str, job_id: Any) -> str | None:
    """Return the path of a job, or None when no mounted URL shows its model."""
    name = _job_urls.get(model_label.lower())
    return path_to(request, name, id=job_id) if name else None
