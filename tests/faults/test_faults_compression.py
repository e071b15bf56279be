"""Fault cases of compressed inputs: codecs, members, bombs. One test per expected value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import Case, Context, busy_ns, capture, equal, params
from tests.support.normalized import Normalizer

CODECS = ("really_gzip.json", "really_plain.json.gz", "really_zstd.json.gz", "no_extension")


def _every_codec(context: Context, value: Any) -> None:
    for file in CODECS:
        context.run(file)


CODEC = Case(
    "09-compression-wrong-extension",
    {
        "verdict_each": _every_codec,
        "n_kept_each": lambda c, v: equal([capture(c.run(f))["n_kept"] for f in CODECS], [v] * 4),
        "kernel_busy_ns_each": lambda c, v: equal([busy_ns(c.run(f)) for f in CODECS], [v] * 4),
        "forbidden.0": _every_codec,
    },
)


def below(found: float, limit: float) -> None:
    assert found < limit


MEMBERS = ("trace.json.gz", "zero_padded.json.gz", "extra_field.json.gz", "trailing_garbage.json.gz")


def _members(context: Context, value: Any, key: str) -> None:
    file, _, what = key.rpartition(".")
    run = context.run(file)
    if what == "verdict":
        assert ("trailing_garbage" in run.warnings()) == value.startswith("accept_with_warning")
    else:
        assert what in ("n_kept", "n_kept_if_accepted")
        assert capture(run)["n_kept"] == value


MEMBER = Case(
    "10-gzip-concatenated-members",
    {
        "kernel_busy_ns_each": lambda c, v: equal([busy_ns(c.run(f)) for f in MEMBERS], [v] * 4),
        "forbidden.0": lambda c, v: equal(capture(c.run())["n_kept"], 6),
        "*": _members,
    },
)

_MEASURE = """
import resource, sys, time
from pathlib import Path
from magneton.schemas.errors import MagnetonError
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.monotonic()
limits = {} if sys.argv[3] == "default" else {"max_decompressed_bytes": int(sys.argv[3])}
try:
    normalize([Path(sys.argv[1])], Path(sys.argv[2]), NormalizeOptions(**limits))
    code = "accepted"
except MagnetonError as error:
    code = error.code
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
sys.stdout.write(f"{code} {grown} {time.monotonic() - start}")
"""


def _bomb(context: Context, limit: str) -> tuple[str, float, float]:
    out = context.tmp_path / "bomb"
    command = [sys.executable, "-c", _MEASURE, str(context.file()), str(out), limit]
    code, grown, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not out.exists()
    assert list(context.tmp_path.iterdir()) == [], "nothing is left behind"
    return code, float(grown), float(seconds)


SIXTEEN_MIB = str(16 << 20)
BOMB = Case(
    "56-gzip-bomb",
    {
        "with_limit_16MiB.verdict": lambda c, v: equal(_bomb(c, SIXTEEN_MIB)[0], "LimitExceededError"),
        "with_limit_16MiB.error": lambda c, v: equal(_bomb(c, SIXTEEN_MIB)[0], v),
        "with_limit_16MiB.max_extra_rss_mib": lambda c, v: below(_bomb(c, SIXTEEN_MIB)[1], v),
        "with_limit_16MiB.max_seconds": lambda c, v: below(_bomb(c, SIXTEEN_MIB)[2], v),
        "default.verdict": lambda c, v: equal(c.error().code, "LimitExceededError"),
        "default.max_extra_rss_mib": lambda c, v: below(_bomb(c, "default")[1], v),
        "forbidden.0": lambda c, v: below(_bomb(c, "default")[1], 64),
        "forbidden.1": lambda c, v: equal(_bomb(c, "default")[0], "LimitExceededError"),
    },
)

CASES = (CODEC, MEMBER, BOMB)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
