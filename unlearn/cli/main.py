"""The command `unlearn-run`: check what was typed, then hand each job to the flow, the only one to import torch."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unlearn import __version__
from unlearn.errors import INTERRUPTED, OK, PARTLY_FAILED, UNEXPECTED, Diverged, ProcessLost, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from unlearn.cli.overrides import Checked

REFUSED = ("--config-path", "--config-name", "--experimental-rerun")
"""Flags of Hydra that would bypass the schema."""


class JobFailed(Exception):
    """A job of a sweep failed, and has said why; Hydra goes on with the rest and raises the first one at the end."""


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    # Before torch is imported. OpenMP's threads spin for milliseconds while they wait, which costs ten times the time
    # as soon as another process wants their core; a tenth of that spinning is as fast on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        return guarded(partial(_main, words), show_traceback="traceback=true" in words)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def guarded(action: Callable[[], int | None], show_traceback: bool, label: str = "") -> int:
    """Run an action; an exception becomes lines on stderr and an exit code."""
    try:
        return action() or OK
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        if isinstance(error, UserError):
            for line in error.messages:
                _say(f"error: {label}{line}")
            return error.exit_code
        if isinstance(error, Diverged):
            _say(f"diverged: {label}{error}")
            return error.exit_code
        hint = "" if show_traceback else " (traceback=true shows where)"
        if isinstance(error, ProcessLost):
            _say(f"error: {label}{error}{hint if hasattr(error, '__notes__') else ''}")
            return error.exit_code
        _say(f"error: {label}unexpected {type(error).__name__}: {' '.join(str(error).split())}{hint}")
        return UNEXPECTED


def _main(argv: list[str]) -> int:
    if "--version" in argv:
        print(f"unlearn-run {__version__}")
        return OK
    flags, faults = _flags(argv)
    if flags.help:
        from unlearn.cli.help import everything, page

        print(everything(flags.config_dir) if "all" in flags.overrides else page(flags.config_dir))
        return OK
    if flags.hydra_help or flags.shell_completion:
        return _hydra(lambda composed: None, flags)

    from unlearn.cli.overrides import check

    try:
        checked = check(flags.overrides, flags.multirun, flags.config_dir)
    except UserError as error:
        raise UserError(faults + error.messages) from error
    if faults:
        raise UserError(faults)
    if flags.cfg or flags.info:
        return _hydra(lambda composed: None, flags)
    if any(cfg.dry_run for cfg in checked.jobs):
        return _dry_run(checked)
    return _run(checked, flags)


def _flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Hydra's own flags, in any order with the overrides, and what is wrong with them."""
    from hydra._internal.utils import get_args_parser

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags, unknown = get_args_parser().parse_known_intermixed_args(argv)
    except SystemExit:
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise UserError(f"{' '.join(reason.split())}; see unlearn-run --help") from None
    refused = [flag for flag in REFUSED if getattr(flags, flag.lstrip("-").replace("-", "_")) is not None]
    faults = [f"{flag}: is not taken; --config-dir adds a folder with files of your own" for flag in refused]
    for flag in unknown:
        if flag.startswith("-"):
            faults.append(f"{flag}: no such flag; settings are written key=value, as in optimizer.lr=1e-5")
            # The word after it was meant as its value.
            after = argv[argv.index(flag) + 1 :][:1]
            flags.overrides = [word for word in flags.overrides if "=" in word or word not in after]
    if flags.resolve and not flags.cfg:
        faults.append("--resolve: goes with --cfg job only")
    return flags, faults


def _dry_run(checked: Checked) -> int:
    """Print the plan of every job without Hydra's run folders: a dry run leaves no trace on disk."""
    from unlearn.cli.checks import no_effect
    from unlearn.run import run

    codes = []
    for number, cfg in enumerate(checked.jobs):
        cfg.dry_run = True
        label = f"job {number}: " if checked.multirun else ""
        codes.append(guarded(partial(run, cfg, no_effect(cfg, checked.touched)), cfg.traceback, label))
    return _total(codes)


def _run(checked: Checked, flags: argparse.Namespace) -> int:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    touched, multirun = checked.touched, checked.multirun
    codes: list[int] = []

    def job(composed: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig

        from unlearn.cli.checks import no_effect
        from unlearn.cli.launch import launch
        from unlearn.config import to_config

        cfg = to_config(composed)
        label = ""
        if multirun:
            hydra_config = HydraConfig.get()
            cfg.output_dir = str(Path(hydra_config.sweep.dir) / hydra_config.sweep.subdir)
            label = f"job {hydra_config.job.num}: "
        code = guarded(partial(launch, cfg, no_effect(cfg, touched)), cfg.traceback, label)
        codes.append(code)
        if code != OK:
            # Hydra makes the folder before the job starts; a job that has written nothing leaves none.
            with contextlib.suppress(OSError):
                Path(cfg.output_dir).rmdir()
        if multirun and code != OK:
            raise JobFailed(f"exit code {code}")

    try:
        code = _hydra(job, flags)
    except JobFailed:
        # Launchers that run jobs in other processes leave no codes here.
        return _total(codes) or PARTLY_FAILED
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(" ".join(str(error).split())) from error
    except OSError as error:
        key = "hydra.sweep.dir" if multirun else "output_dir"
        raise UserError(f"{key}: cannot create the folder {error.filename}: {error.strerror}") from error
    return code or _total(codes)


def _total(codes: list[int]) -> int:
    """One exit code for all jobs: the one that they share, else "partly failed"."""
    if len(set(codes)) == 1:
        return codes[0]
    return PARTLY_FAILED if any(codes) else OK


def _hydra(job: Callable[[DictConfig], None], flags: argparse.Namespace) -> int:
    """Run Hydra's main on what was typed, with the exceptions of jobs left to us."""
    import hydra

    from unlearn.config import conf_dir, register

    register()
    words = [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(flags, name)]
    words += [f"--{name.replace('_', '-')}={value}" for name in _VALUES if (value := getattr(flags, name)) is not None]
    # HYDRA_FULL_ERROR keeps Hydra from printing a stack trace and leaving with 1.
    with _replaced_argv([sys.argv[0], *words, *flags.overrides]), _environment("HYDRA_FULL_ERROR", "1"):
        try:
            hydra.main(config_path=str(conf_dir()), config_name="run", version_base="1.3")(job)()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else OK
    return OK


_SWITCHES = ("hydra_help", "shell_completion", "multirun", "run", "resolve")
_VALUES = ("config_dir", "cfg", "package", "info")


@contextlib.contextmanager
def _replaced_argv(argv: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = argv
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
