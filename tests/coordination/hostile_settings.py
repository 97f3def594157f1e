"""A host whose REST_FRAMEWORK would break every view that trusted it (R-1)."""

import os

os.environ.setdefault("TEST_ENGINE", "sqlite")

from tests.settings import *  # noqa: F403

ROOT_URLCONF = "project.urls"
_HERE = "tests.coordination.hostile_settings."
REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.StaticHTMLRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FileUploadParser"],
    "DEFAULT_PERMISSION_CLASSES": [_HERE + "Refuse"],
    "DEFAULT_THROTTLE_CLASSES": [_HERE + "Refuse"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": _HERE + "Refuse",
    "DEFAULT_METADATA_CLASS": _HERE + "Refuse",
    "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.AcceptHeaderVersioning",
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
    "DEFAULT_FILTER_BACKENDS": [_HERE + "Refuse"],
    "DEFAULT_SCHEMA_CLASS": _HERE + "Refuse",
    "EXCEPTION_HANDLER": _HERE + "explode",
    "NON_FIELD_ERRORS_KEY": "oops",
    "PAGE_SIZE": 1,
    "ALLOWED_VERSIONS": ["9"],
    "URL_FORMAT_OVERRIDE": "fields",
    "FORMAT_SUFFIX_KWARG": "id",
    "UNAUTHENTICATED_USER": None,
    "UNICODE_JSON": False,
    "COMPACT_JSON": False,
    "STRICT_JSON": False,
    "DATETIME_FORMAT": "%d",
    "DATETIME_INPUT_FORMATS": ["%d"],
    "COERCE_DECIMAL_TO_STRING": False,
}


class Refuse:
    """Whatever it is used for, it fails."""

    def __init__(self, *args, **kwargs):
        raise AssertionError("the host's setting was used")


def explode(exc, context):
    """An exception handler that must never be called."""
    raise AssertionError("the host's exception handler was used")
