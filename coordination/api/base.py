"""The base of every view of the three apps: nothing is left to the host's settings (R-1).

The host decides who a caller is (its authentication classes, D13); everything else is said
here. Views read rows and call the owner's verbs; they never write a row themselves, and they
open no transaction: the verbs do (settled 30).
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig
from django.db import connections
from django.db.utils import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.utils.module_loading import import_string
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from coordination.api import preconditions
from coordination.api.links import problem_type
from coordination.api.permissions import MethodPermission
from coordination.api.problems import Code, ProblemError, invalid, not_found
from coordination.api.serializers import flatten
from coordination.api.wire import (
    PROBLEM_MEDIA_TYPE,
    Negotiation,
    Parser,
    ProblemRenderer,
    Renderer,
)
from coordination.conf import conf
from coordination.errors import JobNotFound, StateConflict

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SESSION = "rest_framework.authentication.SessionAuthentication"
_TOKEN = "rest_framework.authentication.TokenAuthentication"  # a path, no secret  # noqa: S105
_BY_DRF_CODE: Mapping[type[Exception], Code] = {
    exceptions.ParseError: Code.MALFORMED,
    exceptions.NotAuthenticated: Code.NOT_AUTHENTICATED,
    exceptions.AuthenticationFailed: Code.AUTHENTICATION_FAILED,
    exceptions.PermissionDenied: Code.PERMISSION_DENIED,
    exceptions.MethodNotAllowed: Code.METHOD_NOT_ALLOWED,
    exceptions.NotAcceptable: Code.NOT_ACCEPTABLE,
    exceptions.UnsupportedMediaType: Code.UNSUPPORTED_MEDIA_TYPE,
    exceptions.Throttled: Code.THROTTLED,
}


class BaseView(APIView):
    """A view that behaves the same in every host.

    `needs` maps each method to its permission (`permissions.py`). `weak_etags` says that a
    GET may be answered with 304 (lists and status, never a config resource).
    """

    renderer_classes = (Renderer, ProblemRenderer)
    parser_classes = (Parser,)
    permission_classes = (MethodPermission,)
    throttle_classes = ()
    content_negotiation_class = Negotiation
    metadata_class = None
    versioning_class = None
    schema = None

    needs: ClassVar[Mapping[str, str]] = {}
    weak_etags: ClassVar[bool] = False
    request_id: str = ""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, outside the host's ATOMIC_REQUESTS (settled 30)."""
        view: Any = super().as_view(**initkwargs)
        view._non_atomic_requests = set(connections)
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer in the caller's language, also where the host has no LocaleMiddleware."""
        language = translation.get_language_from_request(request)
        self.request_id = _request_id(request)
        with translation.override(language):
            response = super().dispatch(request, *args, **kwargs)
            if isinstance(response, Response):
                response.render()
        response["Content-Language"] = language
        response["X-Request-ID"] = self.request_id
        response.setdefault("Cache-Control", "private, no-cache")
        patch_vary_headers(response, ("Accept-Language", "Cookie", "Authorization"))
        return self._conditional(request, response)

    def get_format_suffix(self, **kwargs: Any) -> str | None:
        """None: our URLs have no format suffix, whatever FORMAT_SUFFIX_KWARG says."""
        return None

    def get_authenticators(self) -> list[BaseAuthentication]:
        """The classes of COORDINATION["API_AUTHENTICATION"], else the host's (D13).

        A host that has said nothing to DRF gets sessions, and tokens where their app is
        installed (R-10).
        """
        return [build() for build in _authentication_classes()]

    def get_exception_handler(self) -> Callable[..., Response | None]:
        """Our own, not the host's EXCEPTION_HANDLER."""
        return self._answer_exception

    def handle_exception(self, exc: Exception) -> Response:
        """Answer `exc` with problem details, or raise it again when it is a fault."""
        response = self._answer_exception(exc, {})
        if response is None:
            raise exc
        response.exception = True
        return response

    def translate(self, exc: Exception) -> ProblemError | None:
        """Return the problem that an owner's error stands for; rooms add theirs."""
        if isinstance(exc, JobNotFound):
            return not_found()
        if isinstance(exc, StateConflict):
            text = translation.gettext("It is %(state)s; this needs one of: %(allowed)s.")
            return ProblemError(
                Code.STATE_CONFLICT,
                text % {"state": exc.status, "allowed": ", ".join(exc.allowed)},
                state=exc.status,
                allowed_states=list(exc.allowed),
            )
        return None

    def body(self) -> dict[str, Any]:
        """Return the request's JSON object; an empty body is an empty object."""
        data: Any = self.request.data
        if isinstance(data, QueryDict):  # what DRF answers for a request without a body
            return {}
        if not isinstance(data, dict):
            raise ProblemError(Code.MALFORMED, translation.gettext("Send a JSON object."))
        return data

    @property
    def actor(self) -> Any:
        """The signed-in user, as the owners' verbs want it."""
        return self.request.user

    def _answer_exception(self, exc: Exception, context: Mapping[str, Any]) -> Response | None:
        problem = self.translate(exc) or _known(exc)
        if problem is None:
            return None
        headers = {**problem.headers}
        if isinstance(exc, exceptions.APIException):
            headers |= _headers_of(exc)
        if problem.status == 401:
            headers["WWW-Authenticate"] = self._challenge()
        if problem.code is Code.UNAVAILABLE:
            logger.error("request %s failed: the database does not answer", self.request_id,
                         exc_info=exc, extra={"event": "api.unavailable"})  # fmt: skip
        data = problem.as_json(
            type_=problem_type(self.request, problem.code.value),
            instance=self.request.path,
            request_id=self.request_id,
        )
        return Response(
            data, status=problem.status, headers=headers, content_type=PROBLEM_MEDIA_TYPE
        )

    def _challenge(self) -> str:
        # DRF asks the first class only and answers 403 when that one is the session's.
        for authenticator in self.get_authenticators():
            challenge = authenticator.authenticate_header(self.request)
            if challenge:
                return challenge
        return 'Session realm="api"'

    def _conditional(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        plain = isinstance(response, HttpResponse) and response.status_code == 200
        if not (plain and self.weak_etags and request.method in ("GET", "HEAD")):
            return response
        etag = preconditions.weak_etag(response.content)  # type: ignore[attr-defined]  # plain
        response["ETag"] = etag
        if not preconditions.matches_none(self.request, etag):
            return response
        unchanged = HttpResponse(status=304)
        for name in ("ETag", "Vary", "Content-Language", "X-Request-ID", "Link"):
            if response.has_header(name):
                unchanged[name] = response[name]
        return unchanged


def _authentication_classes() -> list[Callable[[], BaseAuthentication]]:
    if conf.API_AUTHENTICATION:
        return [import_string(path) for path in conf.API_AUTHENTICATION]
    # DRF publishes no way to ask whether the host has said anything at all.
    if "DEFAULT_AUTHENTICATION_CLASSES" in api_settings.user_settings:
        host: Any = api_settings.DEFAULT_AUTHENTICATION_CLASSES  # imported by DRF at this access
        return list(host)
    from django.apps import apps  # only here: which apps the host has is known late

    tokens = apps.is_installed("rest_framework.authtoken")
    return [import_string(path) for path in ((_SESSION, _TOKEN) if tokens else (_SESSION,))]


def _request_id(request: HttpRequest) -> str:
    given = request.headers.get("X-Request-ID", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"


def _known(exc: Exception) -> ProblemError | None:
    if isinstance(exc, ProblemError):
        return exc
    if isinstance(exc, exceptions.ValidationError):
        return invalid(*flatten(exc.detail))
    if isinstance(exc, Http404 | exceptions.NotFound):
        return not_found()
    if isinstance(exc, DjangoPermissionDenied):
        return ProblemError(Code.PERMISSION_DENIED)
    if isinstance(exc, RequestDataTooBig):
        return ProblemError(Code.TOO_LARGE)
    if isinstance(exc, OperationalError | InterfaceError):
        return ProblemError(Code.UNAVAILABLE, headers={"Retry-After": "1"}, retry_after_s=1)
    for kind, code in _BY_DRF_CODE.items():
        if isinstance(exc, kind):
            return ProblemError(code, str(getattr(exc, "detail", "")))
    return None


def _headers_of(exc: exceptions.APIException) -> dict[str, str]:
    wait = getattr(exc, "wait", None)
    return {"Retry-After": str(int(wait))} if wait else {}
