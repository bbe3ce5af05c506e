"""What `pip install` puts on a machine: one import name, all of it, and nothing else.

Builds the sdist and from it the wheel, installs the wheel into an environment that holds nothing but the
dependencies, and looks there. No network: build and pip run on what the test environment has.
"""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("sampler", "kernels", "sharding")


def run(*command, cwd, **changes) -> str:
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **changes}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expected_modules() -> set[str]:
    """The files that the package must hold, as paths under `chainmesh/`."""
    files = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            files.add("/".join(parts[2:] if parts[:2] == ("sampler", "_front") else parts))
    return files


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist and the wheel, built from a copy: building leaves folders behind."""
    place = tmp_path_factory.mktemp("build")
    source = place / "source"
    source.mkdir()
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", source, cwd=place)
    (sdist,) = (place / "dist").glob("*.tar.gz")
    (wheel,) = (place / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> tuple[Path, Path]:
    """A new environment with the wheel in it: (its Python, its site-packages).

    The dependencies are seen through a path file. Path files of the folder it names are not read, so an
    editable chainmesh of the test environment stays out of sight.
    """
    place = tmp_path_factory.mktemp("clean")
    venv = place / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=place)
    python = venv / "bin" / "python"
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    )
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*install, "--no-deps", "--no-index", "--no-compile", built[1], cwd=place)
    assert {path.name for path in site.iterdir()} == {"chainmesh", f"chainmesh-{version()}.dist-info"}
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python, site


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def version() -> str:
    return project()["version"]


def test_the_wheel_holds_every_module_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    modules = {name.removeprefix("chainmesh/") for name in names if name.startswith("chainmesh/")}
    assert modules == expected_modules() | {"py.typed"}
    assert {name.split("/")[0] for name in names} == {"chainmesh", f"chainmesh-{version()}.dist-info"}


def test_every_folder_with_modules_is_listed_in_pyproject():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {str(path.parent.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert folders == set(listed["package-dir"].values())
    assert set(listed["packages"]) == set(listed["package-dir"])


def test_the_wheel_says_who_it_is(built):
    archive = zipfile.ZipFile(built[1])
    info = f"chainmesh-{version()}.dist-info"
    metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert metadata["Name"] == "chainmesh" and metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()
    needed = [line.split(";")[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(needed) == len(project()["dependencies"])


def test_the_sdist_holds_the_folders_as_they_are(built):
    names = {name.partition("/")[2] for name in tarfile.open(built[0]).getnames()}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            assert str(path.relative_to(ROOT)) in names
    assert {"LICENSE", "README.md", "pyproject.toml", "sampler/_front/py.typed"} <= names


def test_the_installed_package_works_away_from_the_repository(installed, tmp_path):
    """Every module is imported, from the installed copy; the folders' own names are not importable."""
    python, site = installed
    code = """
        import importlib, importlib.util, pkgutil, sys
        import chainmesh
        names = [m.name for m in pkgutil.walk_packages(chainmesh.__path__, "chainmesh.")]
        for name in names:
            importlib.import_module(name)
        for name in ("kernels", "sampler", "sharding", "tests", "_front"):
            assert importlib.util.find_spec(name) is None, f"{name} is importable"
        for name in ["chainmesh", *names]:
            print(name, sys.modules[name].__file__)
    """
    lines = run(python, "-c", textwrap.dedent(code), cwd=tmp_path)
    found = dict(line.split(" ", 1) for line in lines.splitlines())
    assert all(Path(path).is_relative_to(site / "chainmesh") for path in found.values())
    assert len(found) == len(expected_modules())
    assert {f"chainmesh.{room}" for room in ROOMS} <= set(found)


def test_a_type_checker_sees_the_types(installed):
    assert (installed[1] / "chainmesh" / "py.typed").is_file()


def test_uninstalling_leaves_nothing(built, tmp_path):
    """The wheel owns every file it brings, so removing it harms no other package."""
    target = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", target, cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", target / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", built[1], cwd=tmp_path)
    (site,) = target.glob("lib/python3.*/site-packages")
    assert (site / "chainmesh").is_dir()
    run(*pip, "uninstall", "--quiet", "--yes", "chainmesh", cwd=tmp_path)
    assert list(site.iterdir()) == []


def find_python(folder: Path, *options: str, **answers: str) -> subprocess.CompletedProcess:
    """`.ci/find-python` on a machine that has only these Pythons, each answering the script's question so."""
    for name, answer in answers.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{answer}\n")
        path.chmod(0o755)
    tools = folder / "tools"
    tools.mkdir()
    for tool in ("sort", "tail"):
        (tools / tool).symlink_to(shutil.which(tool))
    return subprocess.run(
        ["/bin/sh", ROOT / ".ci" / "find-python", *options],
        env={"PATH": f"{folder}:{tools}", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )


def test_make_says_what_to_install_where_there_is_no_python(tmp_path):
    done = find_python(tmp_path, python3="echo old 3.9.2", python3_12="echo a broken shim >&2; exit 127")
    assert done.returncode == 1 and done.stdout == ""
    for words in ("Python 3.11 or newer", "python3 (3.9.2)", "apt-get install python3 python3-venv"):
        assert words in done.stderr


def test_make_says_what_to_install_where_venv_is_missing(tmp_path):
    done = find_python(tmp_path, python3="echo novenv 3.11.2")
    assert done.returncode == 1 and done.stdout == ""
    for words in (
        "python3 is Python 3.11.2",
        "without venv",
        "apt-get install python3-venv",
        "python3.11-venv",
    ):
        assert words in done.stderr


def test_make_takes_another_python_where_the_first_will_not_do(tmp_path):
    done = find_python(tmp_path, python3="echo old 3.9.2", python3_13="exit 1", python3_12="echo good 3.12.1")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/python3.12\n")


def test_ci_finds_the_newest_python_that_starts(tmp_path):
    pythons = dict(python3="echo good 3.11.7", python3_14="exit 1", python3_13="echo good 3.13.0")
    done = find_python(tmp_path, "--newest", "3.12", **pythons, python3_12="echo good 3.12.11")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/python3.13\n")


def test_ci_runs_once_where_there_is_no_newer_python(tmp_path):
    done = find_python(
        tmp_path, "--newest", "3.12", python3="echo good 3.11.7", python3_12="echo novenv 3.12.1"
    )
    assert (done.returncode, done.stdout) == (0, "")
