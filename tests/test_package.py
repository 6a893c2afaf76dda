"""The package as others get it: a wheel, made from the source distribution, that works where no checkout is."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import fedreel
from support.tiny import SETTINGS, sets

pytest.importorskip("build", reason="needs the extra `dev`")

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedreel"


def output_of(*command: object, cwd: Path) -> str:
    """Of a command that knows nothing of this checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes, from a copy: setuptools writes beside the sources."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(SOURCE, folder / "src" / "fedreel", ignore=shutil.ignore_patterns("__pycache__"))
    output_of(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which only the wheel was installed. Its dependencies are borrowed: of a folder
    that a .pth file names Python reads no .pth files, and so does not see the checkout that is installed there."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index")
    output_of(*pip, "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin"


def test_the_wheel_holds_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    files = {p.relative_to(ROOT / "src").as_posix() for p in SOURCE.rglob("*") if p.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    assert {"fedreel/recipes/recognition.toml", "fedreel/report/page.css", "fedreel/py.typed"} <= expected
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == expected


def test_the_version_is_the_modules_and_the_metadata_are_complete(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert sdist.name == f"fedreel-{fedreel.__version__}.tar.gz"
    assert wheel.name == f"fedreel-{fedreel.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = message_from_string(archive.read(metadata).decode())
    for field in ("Author", "Summary", "Keywords", "License-Expression", "Requires-Python", "Classifier"):
        assert said[field], field
    with tarfile.open(sdist) as archive:
        assert f"fedreel-{fedreel.__version__}/LICENSE" in archive.getnames()


def test_the_wheel_runs_where_no_checkout_is(installed: Path, data: Path, tmp_path: Path) -> None:
    where = "import fedreel, fedreel.cli; print(fedreel.__file__)"
    assert Path(output_of(installed / "python", "-c", where, cwd=tmp_path).strip()).is_relative_to(installed.parent)
    listed = output_of(installed / "fedreel", "list", cwd=tmp_path)
    assert "fedvssl-paper" in listed
    settings = sets({**SETTINGS, "data.source": data, "round.rounds": 1})
    said = output_of(installed / "fedreel", "run", "recognition", *settings, "--out", "run", cwd=tmp_path)
    assert "fedavg on recognition: 1 rounds" in said
    style = (SOURCE / "report" / "page.css").read_text().splitlines()[0]
    assert style in (tmp_path / "run" / "report.html").read_text()
