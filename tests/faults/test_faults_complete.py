"""Every value of every fault case is claimed, once: as one that holds, or as an expected failure for a stated reason."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.faults import (
    test_faults_attribution,
    test_faults_compression,
    test_faults_diff,
    test_faults_energy,
    test_faults_formats,
    test_faults_linkage,
    test_faults_names,
    test_faults_parsing,
    test_faults_power,
)
from tests.support.fault_cases import FAULTS, REASONS, Case, expected, values

CASES: list[Case] = [
    *test_faults_attribution.CASES,
    *test_faults_compression.CASES,
    *test_faults_diff.CASES,
    *test_faults_energy.CASES,
    *test_faults_formats.CASES,
    *test_faults_linkage.CASES,
    *test_faults_names.CASES,
    *test_faults_parsing.CASES,
    *test_faults_power.CASES,
]
N_CASES = 48
HOLDS = "holds"


def claims() -> dict[tuple[str, str], list[str]]:
    """What is said of each value: that it holds, or what it waits for."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for case in CASES:
        for path, _ in values(case.name):
            if case.claims(path):
                found[case.name, path].append(case.reason(path) or HOLDS)
    return found


def test_every_case_is_here() -> None:
    folders = sorted(path.name for path in FAULTS.iterdir() if path.is_dir())
    assert len(folders) == N_CASES
    assert {case.name for case in CASES} == set(folders)
    assert all(expected(name) for name in folders)


def test_every_value_is_claimed_once() -> None:
    found = claims()
    everything = {(case, path) for case in {c.name for c in CASES} for path, _ in values(case)}
    counts = Counter(said[0] for said in found.values())
    summary = f"of {len(everything)} values: " + ", ".join(f"{n} {what}" for what, n in counts.most_common())
    assert everything - found.keys() == set(), f"nobody claims these; {summary}"
    assert [key for key, said in found.items() if len(said) > 1] == [], f"claimed more than once; {summary}"
    assert counts.keys() <= {HOLDS, *REASONS}, summary


def test_every_pattern_is_of_use() -> None:
    """A checker or reason that no value asks for is a slip of the pen; those of ``COUNTS`` serve many cases."""
    from tests.support.fault_cases import COUNTS

    idle = []
    for case in CASES:
        paths = [path for path, _ in values(case.name)]
        for pattern in (*case.checks, *case.later):
            alone = Case(case.name, {pattern: lambda c, v: None})
            if pattern not in COUNTS and not any(alone.claims(path) for path in paths):
                idle.append((case.name, pattern))
    assert idle == []
