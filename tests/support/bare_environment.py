"""A Python environment that holds one framework and what the framework needs, and nothing else: made offline, by links."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def needed_by(*names: str) -> set[str]:
    """Return distributions with all that they require, extras and other platforms aside."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in found:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in required:
            plain, _, marker = text.partition(";")
            if "extra" not in marker:
                queue.append(re.split(r"[ <>=!~(\[]", plain.strip(), maxsplit=1)[0])
    return found


def bare_environment(folder: Path, *names: str) -> Path:
    """Make an environment with the named distributions of the running one; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    for name in needed_by(*names):
        files = metadata.distribution(name).files or []
        for top in {Path(str(file)).parts[0] for file in files}:
            source = Path(str(metadata.distribution(name).locate_file(top)))
            target = packages / top
            if top != ".." and source.exists() and not target.exists():
                target.symlink_to(source, target_is_directory=source.is_dir())
    return folder / "bin" / "python"
