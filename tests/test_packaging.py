"""The wheel holds everything and runs outside the checkout; what the code imports is declared and pinned."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions, packages_distributions, requires
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from unlearn.recorder import LIBRARIES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUNTIME = [Requirement(text) for text in PROJECT["dependencies"]]
OPTIONAL = [Requirement(text) for name, texts in EXTRAS.items() if name != "dev" for text in texts]
DEVELOPMENT = [Requirement(text) for text in EXTRAS["dev"]]
PINS = dict(
    line.strip().split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
)
PINNED = {canonicalize_name(name): version for name, version in PINS.items()}


def output_of(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed; its whole output is the failure's message."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the source distribution, so that a file missing in the latter is missing here."""
    folder = tmp_path_factory.mktemp("dist")
    output_of(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that holds the wheel and sees the packages installed here.

    A path that a .pth file names is searched, but .pth files inside it are not read: the editable install of this
    checkout stays invisible.
    """
    venv = tmp_path_factory.mktemp("venv")
    output_of(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    paths = sysconfig.get_paths(vars={"base": str(venv), "platbase": str(venv)})
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(paths["purelib"], "outer.pth").write_text("".join(f"{path}\n" for path in here))
    python = Path(paths["scripts"], Path(sys.executable).name)
    pip = (sys.executable, "-m", "pip", "--python", python)
    output_of(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=venv)
    return python.parent


def clean_environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "UNLEARN_CACHE")}
    return kept | {"HOME": str(home)}


def test_the_wheel_holds_exactly_the_package_and_conf(wheel: Path) -> None:
    files = {path.relative_to(ROOT) for folder in ("unlearn", "conf") for path in (ROOT / folder).rglob("*.*")}
    wanted = {path for path in files if "__pycache__" not in path.parts and (ROOT / path).is_file()}
    names = {f"unlearn/{path.as_posix()}" if path.parts[0] == "conf" else path.as_posix() for path in wanted}
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == names
    assert {"unlearn/conf/run.yaml", "unlearn/conf/model/tiny.yaml", "unlearn/report/report.html.j2"} <= names


def test_the_wheel_carries_licence_version_and_command(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        text = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    assert text["LICENSE"] == (ROOT / "LICENSE").read_text()
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "unlearn/__init__.py").read_text(), re.MULTILINE)
    assert version is not None
    assert f"\nVersion: {version[1]}\n" in text["METADATA"]
    assert "unlearn-run = unlearn.cli.main:main" in text["entry_points.txt"]


def test_the_installed_command_runs_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    place = output_of(installed / "python", "-c", "import unlearn; print(unlearn.__file__)", cwd=tmp_path, env=env)
    assert Path(place.strip()).is_relative_to(installed.parent)
    command = installed / "unlearn-run"
    assert "ngdiff_auto " in output_of(command, "--help", cwd=tmp_path, env=env), "presets are read from the wheel"
    job = output_of(command, "method=npo", "data=tofu", "--cfg", "job", cwd=tmp_path, env=env)
    assert "name: npo" in job
    assert list(tmp_path.iterdir()) == []


def third_party_imports() -> set[str]:
    """Top-level names that the package imports, at any depth of nesting, without the standard library's."""
    names: set[str] = set()
    for path in (ROOT / "unlearn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"unlearn"}


def test_dependencies_are_what_the_code_imports() -> None:
    """What an extra brings may be missing here: it then goes by the name under which it is imported."""
    owners = packages_distributions()
    imported = {canonicalize_name(owners.get(name, [name])[0]) for name in third_party_imports()}
    assert imported == {canonicalize_name(requirement.name) for requirement in [*RUNTIME, *OPTIONAL]}


def test_a_run_records_the_versions_of_declared_libraries() -> None:
    recorded = {canonicalize_name(name) for name in LIBRARIES}
    assert recorded <= {canonicalize_name(requirement.name) for requirement in [*RUNTIME, *OPTIONAL]}
    assert recorded >= {canonicalize_name(requirement.name) for requirement in OPTIONAL}


def test_make_install_takes_all_extras() -> None:
    """Or tests would be skipped on a new machine."""
    installed = re.search(r"-e '\.\[(.+)\]'", (ROOT / "Makefile").read_text())
    assert installed is not None
    assert set(installed[1].split(",")) == set(EXTRAS)


@pytest.mark.parametrize("requirement", [*RUNTIME, *OPTIONAL, *DEVELOPMENT], ids=str)
def test_the_tested_version_lies_in_the_declared_range(requirement: Requirement) -> None:
    assert requirement.specifier, "a range without a bound"
    assert requirement.specifier.contains(PINNED[canonicalize_name(requirement.name)])


def test_everything_that_is_installed_is_pinned() -> None:
    """Indirect dependencies too, but torch's: it pins its own, and they differ with the accelerator."""
    extras = {canonicalize_name(requirement.name) for requirement in OPTIONAL}
    absent = {name for name in extras if not list(distributions(name=name))}
    found = absent.copy()
    open_names = {canonicalize_name(requirement.name) for requirement in [*RUNTIME, *DEVELOPMENT]} | extras - absent
    while open_names:
        name = open_names.pop()
        found.add(name)
        needed = [Requirement(text) for text in requires(name) or () if name != "torch"]
        needed = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
        open_names |= {canonicalize_name(each.name) for each in needed} - found
    assert found <= PINNED.keys()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    listed = [line.split()[1] for line in output_of("make", "--no-print-directory", cwd=ROOT).splitlines()]
    assert listed == phony[1].split()


def test_no_file_names_a_registry_or_a_home_folder() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    forbidden = re.compile(
        r"pypi\.org|pythonhosted\.org|npmjs\.|debian\.org|download\.pytorch\.org|/(?:home/\w|Users/\w|root/)"
    )
    texts = {name: (ROOT / name) for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()}
    found = {name: forbidden.findall(path.read_text(errors="ignore")) for name, path in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}
