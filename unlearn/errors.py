"""What may end a run, with the exit code of the process. Everything else is a defect of the program."""

from __future__ import annotations

OK = 0
UNEXPECTED = 1
USER_ERROR = 2
PARTLY_FAILED = 3
DIVERGED = 4
INTERRUPTED = 130


class UserError(Exception):
    """What the user has to change. One line per fault: the key, what is needed, what was found, what to do."""

    exit_code = USER_ERROR

    def __init__(self, messages: str | list[str]) -> None:
        self.messages = [messages] if isinstance(messages, str) else list(messages)
        super().__init__("\n".join(self.messages))


class Diverged(Exception):
    """A loss, a gradient norm or the update was not finite; the message names the step, the losses and the norms."""

    exit_code = DIVERGED


class ProcessLost(Exception):
    """One of a run's processes has ended or does not answer, so that the others cannot go on."""

    exit_code = UNEXPECTED
