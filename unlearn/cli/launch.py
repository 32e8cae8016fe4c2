"""One run in several processes: start them, watch them, and end all of them as soon as one is lost.

The settings are composed once, here; the processes get them as they are and all go through the same flow. The first is
the main one. This one only waits, and says at the end what has ended the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn.errors import Diverged, ProcessLost, UserError

if TYPE_CHECKING:
    import torch

    from unlearn.config import RunConfig

GRACE_S = 10.0
"""What the main process has to notice by itself that another one is lost, and then once more to write it down."""

SETTLE_S = 1.0
"""After the main process has lost the others: what they have to say why."""

Work = Callable[[], None]


def launch(cfg: RunConfig, warnings: list[str]) -> None:
    """Run once, in `trainer.devices` processes. Raises what `run` raises, and ProcessLost where a process is lost."""
    from unlearn.run import run

    if cfg.trainer.devices == 1:
        run(cfg, warnings)
        return
    report = Path(cfg.output_dir) / "run.json"
    is_ours = not report.exists()
    try:
        share(partial(run, cfg, warnings), partial(_device, cfg), cfg.trainer.devices, cfg.trainer.timeout_s)
    except (ProcessLost, KeyboardInterrupt) as error:
        if is_ours and report.exists():
            _mark_failed(report, str(error) or "interrupted")
        raise


def share(work: Work, device: Callable[[], torch.device], processes: int, timeout_s: float) -> None:
    """Do the same work in several processes, which are what `ranks` says; returns when all have ended.

    `work` and `device` are pickled. A UserError or Diverged that they raise is raised here once; everything else that
    ends a process, and a wait of more than `timeout_s` for another, as ProcessLost.
    """
    with tempfile.TemporaryDirectory(prefix="unlearn-run-", ignore_cleanup_errors=True) as folder:
        started: list[_Process] = []
        try:
            with _interrupts_ignored():
                for number in range(processes):
                    place = (number, processes, Path(folder), timeout_s)
                    started.append(_Process(number, processes, partial(_do, work, device, place)))
            _watch(started)
        except KeyboardInterrupt:
            _end_main(started)
            raise
        finally:
            for each in started:
                each.kill()


class _Process:
    """One process as its parent sees it: `error` is what has ended it, None while it goes on or where all is well."""

    def __init__(self, number: int, processes: int, do: Callable[[connection.Connection], None]) -> None:
        self.name, self.ended, self.ended_at = f"process {number + 1} of {processes}", False, 0.0
        self.error: Exception | None = None
        self.reader, writer = get_context("spawn").Pipe(duplex=False)
        self.process = get_context("spawn").Process(target=do, args=(writer,), name=self.name)
        self.process.start()
        # The child has the only other end now: when it dies, however that is, the pipe says so.
        writer.close()

    def read(self) -> None:
        """Take what the process says at its end."""
        self.ended, self.ended_at = True, time.monotonic()
        try:
            self.error = self.reader.recv()
        except EOFError:
            self.process.join(GRACE_S)
            self.error = _Crash(_ending(self.process.exitcode))

    def kill(self) -> None:
        if self.ended and self.error is None:
            self.process.join(GRACE_S)
        self.process.kill()
        self.process.join()
        self.reader.close()


class _Crash(Exception):
    """A process ended as none should; the text says how."""


def _watch(started: Sequence[_Process]) -> None:
    """Wait until all have ended. Raises what the run ended with, as soon as the main process had time to record it."""
    while not all(each.ended for each in started) and not any(each.error for each in started):
        _wait(started, None)
    failed = [each.error for each in started if each.error is not None]
    if not failed:
        return
    main = started[0]
    # What a user can do something about all processes meet alike, and the main one may still have weights to save.
    alike = isinstance(failed[0], UserError | Diverged)
    until = time.monotonic() + GRACE_S
    while not main.ended and (alike or time.monotonic() < until):
        _wait(started, 1.0 if alike else until - time.monotonic())
    if not main.ended:
        _end_main(started)
    until = time.monotonic() + SETTLE_S
    while isinstance(main.error, ProcessLost) and not all(each.ended for each in started) and time.monotonic() < until:
        _wait(started, until - time.monotonic())
    raise _cause(started)


def _wait(started: Sequence[_Process], seconds: float | None) -> None:
    """Read from those that end within this time, at least from one if there is no limit."""
    running = {each.reader: each for each in started if not each.ended}
    for reader in connection.wait(list(running), seconds and max(seconds, 0.0)):
        running[reader].read()  # type: ignore[index]


def _cause(started: Sequence[_Process]) -> Exception:
    """Of all that went wrong, what the rest follows from: a lost process, then a user's error, then a lost contact."""
    kinds = (_Crash, UserError | Diverged, ProcessLost)
    failed = sorted((each for each in started if each.error is not None), key=lambda each: each.ended_at)
    first = next(each for kind in kinds for each in failed if isinstance(each.error, kind))
    assert first.error is not None
    if not isinstance(first.error, _Crash):
        return first.error
    lost = ProcessLost(f"{first.name} ended with {first.error}; the run needs all of them")
    for note in getattr(first.error, "__notes__", ()):
        lost.add_note(note)
    return lost


def _end_main(started: Sequence[_Process]) -> None:
    """Interrupt the main process, so that it closes the run folder, while the others are of no use any more."""
    if not started or started[0].ended:
        return
    main = started[0]
    main.process.terminate()
    for each in started[1:]:
        # What it waits for in a collective must fail before it can hear of the interruption.
        each.process.kill()
    until = time.monotonic() + GRACE_S
    while not main.ended and time.monotonic() < until:
        _wait([main], until - time.monotonic())


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    why = " (killed from outside, or out of memory)" if -code == signal.SIGKILL else ""
    return f"signal {-code}{why}"


def _mark_failed(report: Path, reason: str) -> None:
    """Write into the run folder what ended the run: the main process could not, or knew only that it was alone."""
    from unlearn.report.html import write_report

    content = json.loads(report.read_text())
    if content["status"] == "done":
        return
    content |= {"status": "failed", "error": reason}
    partial = report.with_name(f".{report.name}.part")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    partial.replace(report)
    write_report(report.parent)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that are started within never see Ctrl-C; this one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _device(cfg: RunConfig) -> torch.device:
    from unlearn.plan import pick_device

    return pick_device(cfg)


def _do(
    work: Work, device: Callable[[], torch.device], place: tuple[int, int, Path, float], parent: connection.Connection
) -> None:
    """What each process does: join the others, work, and say how it ended."""
    from unlearn import ranks

    number, processes, folder, timeout_s = place
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if number == 0:
        signal.signal(signal.SIGTERM, _interrupt)
    else:
        # Words only: what a dying process writes to the terminal by itself is still seen.
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    error: BaseException | None = None
    try:
        ranks.setup(number, processes, folder, device(), timeout_s)
        work()
        ranks.teardown()
    except KeyboardInterrupt:
        error = ProcessLost(f"process {number + 1} of {processes} was interrupted")
    except BaseException as raised:
        error = raised
        if not isinstance(raised, UserError | Diverged | ProcessLost):
            error = _Crash(_words(raised))
            error.add_note(traceback.format_exc())
    parent.send(error)
    parent.close()
    if error is not None:
        # At once: what is left of the connections to the others must not hold it up.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """Nobody is left to end the processes when the one that started them has been killed."""
    parent = parent_process()
    assert parent is not None
    with suppress(OSError):
        connection.wait([parent.sentinel])
    os._exit(1)
