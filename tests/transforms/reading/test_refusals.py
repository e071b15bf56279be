"""What is no trace is refused at once, in little memory, and where a file breaks is said by its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_traces import run_of

from magneton.schemas.errors import InputFormatError, TruncatedInputError
from magneton.transforms.reading.json_array import KEPT_METADATA_BYTES
from magneton.transforms.reading.json_scan import ValueEnd

FOUND = Path(__file__).parents[2] / "found"
EVENT = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}'

# Seconds of processor time of a refusal, and the most memory it takes beside the libraries (MiB): some take 95, older ones 135.
_MEASURE = """
import re, sys, tempfile, time
from pathlib import Path
from magneton.transforms.normalize import normalize
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
with tempfile.TemporaryDirectory() as out:
    start = time.process_time()
    try:
        normalize([Path(sys.argv[1])], Path(out) / "run")
        print("accepted")
    except Exception as error:
        print(type(error).__name__)
    print(time.process_time() - start, peak() - before)
"""

OTHERS = {
    "a list in an object": lambda: (
        b'{"other": [' + b",".join(b'{"id": %d, "v": {"a": %d}}' % (i, i) for i in range(400_000)) + b"]}"
    ),
    "many members": lambda: b"{" + b",".join(b'"k%d":1' % i for i in range(1_000_000)) + b"}",
    "large members": lambda: (
        b"{" + b",".join(b'"k%d":%b' % (i, b"[" + b"1," * 2000 + b"1]") for i in range(3000)) + b"}"
    ),
    "numbers for events": lambda: b'{"traceEvents":[' + b"1," * 6_000_000 + b"1]}",
    "objects for events": lambda: b'{"traceEvents":[' + b",".join(b'{"id":%d}' % i for i in range(1_000_000)) + b"]}",
    "a string": lambda: b'{"a":"' + b'x\\"' * 5_000_000 + b'"}',
    "brackets": lambda: b'{"a":' + b"[" * 8_000_000 + b"]" * 8_000_000 + b"}",
    "a cut list": lambda: b'{"a":[' + b'{"b":"c"},' * 1_500_000,
    "a long name": lambda: b'{"' + b"n" * 15_000_000 + b'":1}',
    "a number": lambda: b'{"a":' + b"1" * 15_000_000 + b"}",
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_trace_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(OTHERS[kind]())
    said = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert said[0] in ("InputFormatError", "TruncatedInputError")
    assert float(said[1]) < 1.0
    # Well below 150 MB with what the program itself takes (about 60 MB); what was read varies by a few MB.
    assert float(said[2]) < 65


def test_a_large_member_beside_the_events_is_left_out_with_a_word() -> None:
    large = json.dumps({"x": ["y" * 100] * (KEPT_METADATA_BYTES // 90)})
    run = run_of(b'{"large": %b, "small": 5, "traceEvents": [%b]}' % (large.encode(), EVENT))
    assert run.warnings()["metadata_left_out"] == 1
    assert json.loads(run.rows("captures")[0]["metadata"])["small"] == 5
    assert len(run.rows("ops")) == 1


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("number", [0, 7, 299])
def test_the_line_of_the_file_is_said(indent: int | None, number: int) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": f"o{i}", "pid": 1, "tid": 1, "ts": i, "dur": 1} for i in range(300)]
    text = json.dumps({"traceEvents": events}, indent=indent).replace(f'"o{number}"', f'"o{number}\\u12"')
    line = text[: text.index(f'"o{number}\\u12"')].count("\n") + 1
    with pytest.raises(InputFormatError, match=rf"in event {number}, in line {line} of the file"):
        run_of(text.encode())


def test_the_line_of_broken_metadata_is_said() -> None:
    with pytest.raises(InputFormatError, match="outside its events, in line 3 of the file"):
        run_of(b'{"a": 1,\n"traceEvents": [%b],\n"b": [1 2]}' % EVENT)


def test_found_bad_escape_late() -> None:
    with pytest.raises(InputFormatError, match="line 2514 of the file"):
        run_of((FOUND / "bad-escape-late" / "trace.json").read_bytes())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[], '),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a"\\'), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, size=st.integers(1, 9), rest=st.sampled_from([b",", b"}", b"]", b" ]\\"]))
def test_the_end_of_a_value_does_not_depend_on_the_blocks(value: object, size: int, rest: bytes) -> None:
    text = json.dumps(value).encode()
    whole = text + rest
    scan, done = ValueEnd(), 0
    for start in range(0, len(whole), size):
        end = scan.feed(whole[start : start + size])
        if end is not None:
            done = start + end
            break
    assert done == len(text)


def test_a_cut_file_that_is_no_trace_says_that_it_is_cut() -> None:
    with pytest.raises(TruncatedInputError):
        run_of(b'{"a": [1, 2')
