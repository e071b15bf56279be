"""Content-derived identities: the same content is the same run, whatever it is called and wherever it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits, reading it in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_copy(source: Path, target: Path) -> str:
    """Copy a file and return its SHA-256; the file is read once, in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with source.open("rb") as stream, target.open("wb") as copy:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def run_id(primary_hashes: Iterable[str]) -> str:
    """Return ``r`` + 16 hex digits over the sorted SHA-256 hashes of a run's primary files.

    The order in which files were given does not matter; their names do not enter.
    """
    joined = "\n".join(sorted(primary_hashes)).encode()
    return "r" + hashlib.sha256(joined).hexdigest()[:16]


def diff_id(run_a: str, run_b: str, settings: str) -> str:
    """Return ``d`` + 16 hex digits over two run ids in order and the settings they were compared with."""
    return "d" + hashlib.sha256(f"{run_a}\n{run_b}\n{settings}".encode()).hexdigest()[:16]
