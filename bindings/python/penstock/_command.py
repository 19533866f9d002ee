"""The `penstock` console script: the command that lies in this package."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    """Becomes the command, with this process's arguments."""
    command = pathlib.Path(__file__).parent / "bin" / "penstock"
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
