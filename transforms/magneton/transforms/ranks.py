"""Which file is which rank, and whether the files of a job belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magneton.schemas.errors import RankError
from magneton.schemas.kinds import CaptureKind
from magneton.transforms.naming.rank_names import ranks_of_names

if TYPE_CHECKING:
    from magneton.transforms.job import CaptureFile


def assign_ranks(files: Sequence[CaptureFile], *, of_several: bool) -> None:
    """Set rank and capture name of each file.

    A file that names no rank is rank 0 when it is alone; among several their names may say (see ``naming.rank_names``).

    Args:
        files: files that were read.
        of_several: several files or a folder were given. Then missing ranks cause a warning.

    Raises:
        RankError: two files claim one rank, a rank is not below the world size, or ranks cannot be told apart.
    """
    for kind in dict.fromkeys(f.kind for f in files):
        members = [f for f in files if f.kind == kind]
        silent = [f for f in members if f.stage is not None and f.stage.info.rank is None]
        named = ranks_of_names([f.path.name for f in silent]) if len(members) > 1 else [None] * len(silent)
        by_name = {id(file): rank for file, rank in zip(silent, named, strict=True)}
        for file in members:
            _rank(file, by_name.get(id(file)), alone=len(members) == 1)
        if kind == CaptureKind.PROFILE:
            for file in members:
                file.name = kind
            _check(members, of_several=of_several)
        else:
            _number(members, kind)


def _rank(file: CaptureFile, named: int | None, *, alone: bool) -> None:
    if file.stage is None:
        return
    info = file.stage.info
    rank = info.rank
    if rank is None:
        rank = 0 if named is None else named
        where = "0 is used" if named is None else "its name gives one"
        if not alone:
            file.stage.warn("rank_unknown", f"the file names no rank; {where}")
    if rank < 0 or (info.world_size is not None and rank >= info.world_size):
        raise RankError(
            f"claims rank {rank} of {info.world_size}", path=file.path, remedy="check where the file comes from"
        )
    file.rank = rank


def _check(files: Sequence[CaptureFile], *, of_several: bool) -> None:
    by_rank: dict[int, CaptureFile] = {}
    sizes: dict[int, CaptureFile] = {}
    for file in files:
        other = by_rank.setdefault(file.rank, file)
        if other is not file:
            raise RankError(
                f"claims rank {file.rank}, and so does {other.path}",
                path=file.path,
                remedy="give one file per rank, of one job; where files do not say, name them *_rank0.json, *_rank1.json ...",
            )
        size = file.stage.info.world_size if file.stage is not None else None
        if size is not None:
            sizes.setdefault(size, file)
    if len(sizes) > 1:
        (one, first), (two, second) = list(sizes.items())[:2]
        raise RankError(
            f"belongs to a job of {two} ranks, but {first.path} belongs to one of {one}",
            path=second.path,
            remedy="give files of one job",
        )
    missing = sorted(set(range(next(iter(sizes), 0))) - set(by_rank))
    if missing and of_several:
        for file in files:
            if file.stage is not None:
                file.stage.info.incomplete = True
        stage = files[0].stage
        if stage is not None:
            stage.warn("missing_ranks", f"ranks not given: {', '.join(map(str, missing))}", len(missing))


def _number(files: Sequence[CaptureFile], kind: str) -> None:
    """Give the captures of one rank names of their own."""
    seen: dict[int, int] = {}
    for file in sorted(files, key=lambda f: (f.rank, f.path.name)):
        count = seen[file.rank] = seen.get(file.rank, -1) + 1
        file.name = kind if count == 0 else f"{kind}_{count}"
