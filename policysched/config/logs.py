"""Logging: one line per record on standard error, as text or JSON.

Fields have texts of tenants, such as the name of a PodGroup in an annotation. Whoever reads the log on a terminal sees their
control and bidirectional characters as escapes.

Modules use stdlib logging with their fields in `extra`; the formatters add every field that is not logging's own. The
scheduler core has no logger: its `Log` commands are written here.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from policysched.scheduler.commands import Log
from policysched.text.sanitize import escape_json, escape_to_line, escape_unprintable

LogFormat = Literal["text", "json"]

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIELDS = "fields"
FIELD_CHARACTERS_MAX = 8192
"""A message of a webhook has any length, and each character is looked at."""


def configure_logging(log_format: LogFormat, level: str) -> None:
    """Called once, at the start of a long-running command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if log_format == "json" else TextLogFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("policysched").setLevel(level.upper())


def write_log(logger: logging.Logger, entry: Log) -> None:
    """Carry out a `Log` command."""
    logger.log(getattr(logging, entry.level.upper()), entry.message, extra={_FIELDS: dict(entry.fields)})


def log_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields of the record, in order, each with the beginning of a long text."""
    own = {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD_ATTRIBUTES and name != _FIELDS
    }
    fields = {**own, **getattr(record, _FIELDS, {})}
    return {name: _short(value) for name, value in fields.items()}


def _short(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > FIELD_CHARACTERS_MAX
    return value[:FIELD_CHARACTERS_MAX] + "…" if is_long else value


class JsonLogFormatter(logging.Formatter):
    """`{"ts": ..., "level": ..., "logger": ..., "msg": ..., ...}`; a field with one of these names gets the prefix `fact_`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        for name, value in log_fields(record).items():
            line[f"fact_{name}" if name in line else name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
            return json.dumps(line, default=str)
        return escape_json(text)


class TextLogFormatter(logging.Formatter):
    """`12:00:01.250 warning the message  key=value key="two words"`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_quoted(value)}" for name, value in log_fields(record).items())
        line = f"{_time(record)[11:23]} {record.levelname.lower():7} {record.getMessage()}"
        line = escape_to_line(f"{line}  {fields}" if fields else line)
        if record.exc_info:
            line += f"\n{escape_unprintable(self.formatException(record.exc_info))}"
        return line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and all(char.isprintable() and char not in ' "=' for char in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
