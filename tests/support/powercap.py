"""A powercap tree as the kernel lays it out, in a temporary directory."""

from __future__ import annotations

from pathlib import Path

RANGE_UJ = 262143328850
TREE = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "uncore",
    "intel-rapl:0:2": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1:0": "dram",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def powercap(root: Path, tree: dict[str, str] = TREE) -> Path:
    """Make the tree: every zone lies where it belongs and is linked at the top by its own name, as in sysfs."""
    root.mkdir(parents=True)
    for control in {name.split(":")[0] for name in tree}:
        (root / control).mkdir()
        (root / control / "enabled").write_text("1\n")
    for number, (zone, name) in enumerate(sorted(tree.items())):
        path = root / "devices" / zone
        path.mkdir(parents=True)
        (path / "name").write_text(name + "\n")
        (path / "max_energy_range_uj").write_text(f"{RANGE_UJ if name != 'dram' else 65712999613}\n")
        (path / "energy_uj").write_text(f"{(number + 1) * 1_000_000}\n")
        (path / "constraint_0_name").write_text("long_term\n")
        (root / zone).symlink_to(path)
    return root
