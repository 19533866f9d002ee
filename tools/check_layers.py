#!/usr/bin/env python3
"""Fails if a file includes a header of a subsystem that does not lie below its own.

LAYERS runs from the bottom to the top; subsystems of one step do not see each other.
"""
import pathlib
import re
import sys

LAYERS = [{"core"}, {"cuda"}, {"topology", "checkpoint"}, {"comm"}, {"table"}, {"reader"},
          {"engram", "gate"}, {"plan"}, {"cli", "bindings"}]
RANK = {name: i for i, names in enumerate(LAYERS) for name in names}
PUBLIC_ONLY = {"cli", "bindings"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"(penstock/)?(\w+)/', re.M)


def main(root: pathlib.Path) -> int:
    bad = []
    for base in (root / "include" / "penstock", root / "src", root):
        folders = ["bindings"] if base == root else [p.name for p in base.iterdir() if p.is_dir()]
        for mine in sorted(folders):
            for path in sorted((base / mine).rglob("*")):
                if path.suffix not in {".hpp", ".cpp", ".cu", ".cuh"}:
                    continue
                for public, other in INCLUDE.findall(path.read_text()):
                    is_below = RANK.get(other, 99) < RANK.get(mine, -1)
                    if other != mine and not (is_below and (public or mine not in PUBLIC_ONLY)):
                        bad.append(f"{path.relative_to(root)}: {mine} may not include {other}")
    print("\n".join(bad) or "layers: ok")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
