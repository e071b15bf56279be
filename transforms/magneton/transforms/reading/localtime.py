"""Local times without a zone: read with a zone the user gives, daylight saving and day-month order included."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Iterable

from magneton.schemas.errors import ClockAlignmentError, InputFormatError, UsageError
from magneton.schemas.kinds import Flag

_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# Rows of several devices are written a little out of order; more than this backwards is the clock being put back.
_JITTER_NS = 60 * 10**9
DATE_ORDERS = ("mdy", "dmy")


def parse_zone(text: str) -> dt.tzinfo:
    """Return the zone named by ``UTC``, ``+02:00``, ``UTC-5`` or an IANA name such as ``Europe/London``.

    Raises:
        UsageError: no such zone on this machine.
    """
    if text.upper() in {"UTC", "Z", "GMT"}:
        return dt.UTC
    if match := _OFFSET.fullmatch(text):
        sign, hours, minutes = match.groups()
        delta = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
        if delta < dt.timedelta(hours=24):
            return dt.timezone(-delta if sign == "-" else delta)
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"unknown time zone {text[:60]!r}",
            remedy="give UTC, an offset such as +02:00, or a name such as Europe/London",
        ) from error


def need_zone(text: str | None, path: object) -> dt.tzinfo:
    """Return the zone given for a file of local times.

    Raises:
        ClockAlignmentError: none was given.
    """
    if text is None:
        raise ClockAlignmentError(
            "holds local times without a time zone",
            path=str(path),
            remedy="say in which zone it was written: magneton normalize --tz UTC, or --tz Europe/London",
        )
    return parse_zone(text)


class LocalClock:
    """Turns local times into Unix nanoseconds, following the file through the hour that occurs twice.

    Attributes:
        ambiguous: how many times were read that occur twice.
    """

    def __init__(self, zone: dt.tzinfo) -> None:
        self._zone = zone
        self._last: int | None = None
        self._put_back = False
        self._cache: dict[tuple[int, int, int, int, int, int], int] = {}
        self.ambiguous = 0

    def unix_ns(self, fields: tuple[int, int, int, int, int, int], nanoseconds: int) -> int | str:
        """Return Unix nanoseconds of (year, month, day, hour, minute, second) plus nanoseconds, or a reason code."""
        second_ns = self._cache.get(fields)
        if second_ns is None:
            try:
                local = dt.datetime(*fields, tzinfo=self._zone)
                first, second = (self._seconds(local.replace(fold=fold)) for fold in (0, 1))
            except (ValueError, OverflowError):
                return Flag.ROW_MALFORMED
            if first > second:  # the hour that the zone skips
                return "ts_local_invalid"
            second_ns = first * 10**9
            if first < second:
                self.ambiguous += 1
                if self._last is not None and second_ns < self._last - _JITTER_NS:
                    self._put_back = True
                if self._put_back:
                    second_ns = second * 10**9
                return self._seen(second_ns + nanoseconds)
            if len(self._cache) < 4096:
                self._cache[fields] = second_ns
            else:
                self._cache = {fields: second_ns}
        self._put_back = False
        return self._seen(second_ns + nanoseconds)

    def _seen(self, result: int) -> int:
        if self._last is None or result > self._last:
            self._last = result
        return result

    @staticmethod
    def _seconds(moment: dt.datetime) -> int:
        delta = moment.astimezone(dt.UTC) - _EPOCH
        return delta.days * 86400 + delta.seconds


def nanoseconds(fraction: str | None) -> int:
    """Return the nanoseconds of a decimal fraction of a second written as ``123`` (digits beyond 9 are cut)."""
    return int((fraction or "")[:9].ljust(9, "0"))


def date_order(dates: Iterable[tuple[int, int, int]], path: object, wanted: str | None = None) -> tuple[str, str]:
    """Decide whether ``a-b-yyyy`` means month-day or day-month over a whole file.

    Args:
        dates: distinct (a, b, year).
        path: file, for messages.
        wanted: ``mdy`` or ``dmy`` where the user says so.

    Returns:
        The order and what it rests on: ``given``, ``a day above 12``, ``same either way``, ``shortest span``, or
        ``assumed`` (month-day, which is what MLPerf's checker reads).

    Raises:
        UsageError: ``wanted`` is neither.
        InputFormatError: no order fits all dates.
    """
    if wanted is not None and wanted not in DATE_ORDERS:
        raise UsageError(f"unknown date order {wanted[:20]!r}", remedy="give mdy or dmy")
    known = sorted(set(dates))
    spans = {order: _span(known, order) for order in DATE_ORDERS}
    if wanted is not None:
        if spans[wanted] is None:
            raise InputFormatError(f"holds dates that do not fit the order {wanted}", path=str(path))
        return wanted, "given"
    fitting = [order for order in DATE_ORDERS if spans[order] is not None]
    if not fitting:
        raise InputFormatError("holds dates that are neither all month-day nor all day-month", path=str(path))
    if len(fitting) == 1:
        return fitting[0], "a day above 12"
    if all(a == b for a, b, _ in known):
        return "mdy", "same either way"
    short = [order for order in DATE_ORDERS if (spans[order] or 0) <= 7]
    if len(known) > 1 and len(short) == 1:
        return short[0], "shortest span"
    return "mdy", "assumed"


def _span(dates: list[tuple[int, int, int]], order: str) -> int | None:
    """Return the days between the first and last date in that order, or None when one is no date."""
    try:
        days = [dt.date(y, a, b) if order == "mdy" else dt.date(y, b, a) for a, b, y in dates]
    except ValueError:
        return None
    return (max(days) - min(days)).days if days else 0
