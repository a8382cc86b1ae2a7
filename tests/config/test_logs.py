"""One line an occurrence, with its facts."""

import json
import logging
from collections.abc import Iterator

import pytest

from policysched.config.logs import FIELD_CHARACTERS_MAX, JsonLogFormatter, TextLogFormatter, write_log
from policysched.scheduler.commands import Log


class Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("test.logs")
    made.setLevel(logging.DEBUG)
    yield made
    made.handlers.clear()


def test_json_has_the_message_and_every_field(logger: logging.Logger) -> None:
    lines = Lines(JsonLogFormatter())
    logger.addHandler(lines)

    logger.warning("it is so", extra={"pods": 3, "error": 'a "reason"\nof two lines'})
    write_log(logger, Log("info", "from the core", {"name": "web", "msg": "twice", "level": 7}))

    first, second = (json.loads(line) for line in lines.lines)
    assert (first["level"], first["msg"], first["pods"], first["error"]) == (
        "warning",
        "it is so",
        3,
        'a "reason"\nof two lines',
    )
    assert (second["msg"], second["name"], second["fact_msg"], second["fact_level"]) == (
        "from the core",
        "web",
        "twice",
        7,
    )
    assert ["\n" in line for line in lines.lines] == [False, False]


def test_text_quotes_values_with_separators(logger: logging.Logger) -> None:
    lines = Lines(TextLogFormatter())
    logger.addHandler(lines)

    logger.info("it is so", extra={"pods": 3, "error": "two words", "line": "a\nb", "none": ""})

    assert lines.lines[0][13:] == 'info    it is so  pods=3 error="two words" line="a\\nb" none=""'


HOSTILE = "\x1b]0;\x07\x9b31m\u202e\ud800\n\U000e0041"


@pytest.mark.parametrize("formatter", [JsonLogFormatter(), TextLogFormatter()])
def test_a_text_of_a_tenant_cannot_write_to_the_terminal(
    logger: logging.Logger, formatter: logging.Formatter
) -> None:
    for text in (HOSTILE, HOSTILE.replace("\ud800", "")):
        for message in ("a group is missing", f"a group is missing: {text}"):
            # Not logged: pytest-xdist ends at a lone surrogate in its report.
            extra = {"group": text, "more": 2**70}
            record = logger.makeRecord("a", logging.WARNING, "b", 1, message, (), None, extra=extra)

            line = formatter.format(record)

            assert line.isprintable(), ascii(line)
            if isinstance(formatter, JsonLogFormatter):
                assert json.loads(line)["group"] == text


@pytest.mark.parametrize("formatter", [JsonLogFormatter(), TextLogFormatter()])
def test_a_line_has_the_beginning_of_a_long_text(
    logger: logging.Logger, formatter: logging.Formatter
) -> None:
    """A webhook denies an eviction with megabytes: each character took 70 ns, or 2 microseconds."""
    lines = Lines(formatter)
    logger.addHandler(lines)

    write_log(logger, Log("warning", "cannot evict", {"error": "no: " + "\u200b" * 100_000, "pod": "web"}))

    (line,) = lines.lines
    assert "no: " in line and "web" in line
    assert len(line) < 7 * FIELD_CHARACTERS_MAX


def test_an_exception_is_logged_with_its_position(logger: logging.Logger) -> None:
    lines = Lines(JsonLogFormatter())
    logger.addHandler(lines)

    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("it broke")

    assert "test_logs.py" in json.loads(lines.lines[0])["exception"]
