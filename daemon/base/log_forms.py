# SPDX-License-Identifier: Apache-2.0
"""The forms in which log lines go out: for people, logfmt for the journal, JSON on demand.

Lines of this program read "event key=value key=value: more words". The words before the first key name the event; they
are fixed, and docs/failures.md lists them. Logfmt and JSON take such a line apart. The journal has the time and wants
the priority in front of each line (sd-daemon(3)), so logfmt has no time of its own.

What a line says of others may hold anything, as the name of a job may hold `uid=0`. So a line is taken apart where the
code has its keys, and not where the text has them; in lines for people such a value is quoted.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Literal

LINE_CHARACTERS_MAX = 8192  # of a line with its traceback
Form = Literal["auto", "lines", "logfmt", "json"]
PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_KEY = re.compile(r"(?:^|(?<= ))([a-z_][\w.]*)=")
_FREE = ("reason", "error")  # keys whose value is a sentence
_CONVERSION = re.compile(r"%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
_BARE = re.compile(r"[^\s\"=]+")


def chosen(form: Form, environment: Mapping[str, str] = os.environ, descriptor: int = 2) -> Form:
    """What "auto" stands for: logfmt if standard error is the journal, lines for people elsewhere."""
    if form != "auto":
        return form
    try:
        found = os.fstat(descriptor)
    except OSError:
        return "lines"
    return "logfmt" if environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}" else "lines"


def formatter(form: Form) -> logging.Formatter:
    """Writes records in that form; "auto" is none."""
    return {"logfmt": Logfmt, "json": Json}.get(form, Lines)()


def fields(message: str) -> dict[str, str]:
    """The parts of a message: "event", its keys, and what follows them as "text"."""
    keys = list(_KEY.finditer(message))
    if not keys:
        event, _, text = message.partition(": ")
        return {"event": event} | ({"text": text} if text else {})
    found = {"event": message[: keys[0].start()].strip(" :")}
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        if key[1] in found:
            continue  # a sentence may hold such a word once more
        value = message[key.end() : following.start() if following else len(message)].rstrip()
        if key[1] in _FREE:
            found[key[1]] = message[key.end() :].rstrip()
            break
        value, colon, text = value.partition(": ")
        found[key[1]] = value
        if colon:
            found["text"] = text if following is None else message[key.end() + len(value) + 2 :].rstrip()
            break
    return found


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """As `fields`, of a record: by the keys that its format has, so that no value can add one."""
    template, arguments = str(record.msg), record.args
    keys = list(_KEY.finditer(template))
    if not keys or not isinstance(arguments, tuple) or not arguments:
        return fields(record.getMessage())

    def written(start: int, end: int) -> str:
        skip = _conversions(template[:start])
        return template[start:end] % arguments[skip : skip + _conversions(template[start:end])]

    found = {"event": written(0, keys[0].start()).strip(" :")}
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        end = following.start() if following else len(template)
        colon = template.find(": ", key.end(), end)
        if key[1] in found:
            continue
        if key[1] in _FREE:
            found[key[1]] = written(key.end(), len(template)).rstrip()
            break
        found[key[1]] = written(key.end(), end if colon < 0 else colon).rstrip()
        if colon >= 0:
            found["text"] = written(colon + 2, len(template)).rstrip()
            break
    return found


def quoted_message(record: logging.LogRecord) -> str:
    """The message for people; a value that looks like keys and values itself is quoted."""
    template, arguments = str(record.msg), record.args
    if not isinstance(arguments, tuple) or not arguments:
        return record.getMessage()
    shown = list(arguments)
    for key in _KEY.finditer(template):
        at = _conversions(template[: key.end()])
        if template.startswith("%s", key.end()) and key[1] not in _FREE and "=" in str(shown[at]):
            shown[at] = json.dumps(str(shown[at]), ensure_ascii=False)
    return template % tuple(shown)


def _conversions(template: str) -> int:
    """How many arguments a format takes."""
    return sum(found != "%%" for found in _CONVERSION.findall(template))


class Lines(logging.Formatter):
    """For people, with the time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s%(left_out)s", defaults={"left_out": ""})

    def format(self, record: logging.LogRecord) -> str:
        """The line, cut where it is absurdly long."""
        shown = logging.makeLogRecord(record.__dict__ | {"msg": quoted_message(record), "args": ()})
        return _cut(super().format(shown))


class _Parts(logging.Formatter):
    """What logfmt and JSON have in common."""

    def parts(self, record: logging.LogRecord) -> dict[str, str]:
        """Level and logger, the message taken apart, how many such lines were left out, and a traceback."""
        own = {"level": record.levelname.lower(), "logger": record.name}
        told = own | fields_of(record) | own
        if left_out := getattr(record, "left_out", ""):
            told["left_out"] = left_out.rpartition("=")[2]
        if record.exc_info and record.exc_info[0] is not None:
            told["trace"] = self.formatException(record.exc_info)
        return {key: _cut(value) for key, value in told.items()}


class Logfmt(_Parts):
    """One line for the journal."""

    def format(self, record: logging.LogRecord) -> str:
        """A priority, then key=value, quoted where there is more than a word."""
        words = [f"{key}={_quoted(value)}" for key, value in self.parts(record).items()]
        return f"<{PRIORITIES.get(record.levelno, 5)}>{' '.join(words)}"


class Json(_Parts):
    """One object a line, with the time in RFC 3339."""

    def format(self, record: logging.LogRecord) -> str:
        """The object."""
        when = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}"
        time = {"time": when + self.formatTime(record, "%z")}
        return json.dumps(time | self.parts(record) | time)


def _quoted(value: str) -> str:
    return value if _BARE.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _cut(line: str) -> str:
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    return f"{line[:LINE_CHARACTERS_MAX]}... and {len(line) - LINE_CHARACTERS_MAX} characters more"
