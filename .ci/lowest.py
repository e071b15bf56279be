"""Write constraints for pip that pin every dependency of the core to the lowest version pyproject.toml allows.

    python .ci/lowest.py pyproject.toml > constraints.txt

`"pyarrow>=20,<30"` becomes `pyarrow==20`, which pip reads as 20.0.0. There is no second list of versions to forget.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)>=(?P<lowest>\d+(?:\.\d+)*)(?:,.*)?", re.ASCII)


def constraints(pyproject: str) -> list[str]:
    """Return one constraint for each core dependency.

    Raises:
        ValueError: a dependency without a lower bound.
    """
    found = []
    for requirement in tomllib.loads(pyproject)["project"]["dependencies"]:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound of the form name>=1.2")
        found.append(f"{match['name']}=={match['lowest']}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints(Path(sys.argv[1]).read_text())) + "\n")
