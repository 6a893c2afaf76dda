"""Write locks/EXTRA.txt: every package that an extra needs, with its version and hashes. `make locks`.

torch and what it alone brings (CUDA) are left out: their wheels differ by platform, and are installed first."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib

HERE = Path(__file__).parent
ROOT = HERE.parent
APART = re.compile(r"torch|triton|(nvidia|cuda)-.*")


def main() -> None:
    for extra in extras():
        names = [line.partition("==")[0] for line in compiled(extra).splitlines() if "==" in line]
        apart = [word for name in names if APART.fullmatch(name) for word in ("--no-emit-package", name)]
        (HERE / f"{extra}.txt").write_text(compiled(extra, "--generate-hashes", *apart))
        print(f"locks/{extra}.txt: {len(names) - len(apart) // 2} packages")


def extras() -> list[str]:
    """Those that people install to use fedreel; tools for its development are pinned by constraints.txt alone."""
    return [name for name in project()["optional-dependencies"] if name not in ("dev", "docs")]


def project() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def compiled(extra: str, *options: str) -> str:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    command = [uv, "pip", "compile", "pyproject.toml", "--extra", extra, "-c", "constraints.txt", "--universal"]
    command += ["--python-version", "3.11", "--no-header", "--no-annotate", "--quiet", *options]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
