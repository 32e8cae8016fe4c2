"""The terminal: one console, one logger, one kind of progress bar. All on stderr, so that stdout holds results only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

log = logging.getLogger("unlearn")


def console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """Bars that vanish when done, and that print nothing where nobody watches."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    ) as bars:
        yield bars


@contextmanager
def logging_to(file: Path | None) -> Iterator[None]:
    """Send the project's log lines to the terminal, and to `file` where there is one."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    handlers[0].setFormatter(logging.Formatter("%(message)s"))
    if file is not None:
        handlers.append(logging.FileHandler(file))
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
