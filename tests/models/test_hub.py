"""The hub out of reach, gated, or without the repository: one line each, within seconds."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from unlearn.errors import UserError
from unlearn.models import hub


def raising(error: Exception) -> Any:
    def repo_info(*args: Any, **options: Any) -> Any:
        raise error

    return repo_info


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid"))


CASES = [
    (GatedRepoError("gated", response=response(403)), "is gated: accept its terms on its page and log in"),
    (RepositoryNotFoundError("none", response=response(404)), "does not exist, or is private"),
    (RevisionNotFoundError("none", response=response(404)), "has no revision 'v9'"),
    (httpx.ConnectError("no route"), "cannot be reached (ConnectError): go online, or give a local folder"),
    (TimeoutError("slow"), "cannot be reached (TimeoutError)"),
]


@pytest.mark.parametrize(("error", "line"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_each_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, line: str, kind: str) -> None:
    monkeypatch.setattr(HfApi, "repo_info", raising(error))
    with pytest.raises(UserError) as caught:
        hub.require("org/thing", "model.path", revision="v9", kind=kind)
    (message,) = caught.value.messages
    assert message.startswith(f"model.path: the {kind} 'org/thing' on the hub")
    assert line in message
    assert "\n" not in message


def test_an_impossible_name_is_no_traceback() -> None:
    with pytest.raises(UserError, match=r"needs a folder that exists or a hub id; found 'a b'"):
        hub.require("a b", "model.path")


def test_offline_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"'org/thing' is not in the local hub cache, and HF_HUB_OFFLINE is set"):
        hub.require("org/thing", "model.path")


def test_a_hub_out_of_reach_is_known_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(UserError, match="cannot be reached"):
        hub.require("org/thing", "model.path")
    assert time.monotonic() - began < 10


def test_dataset_errors_name_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def broken(*args: Any, **options: Any) -> Any:
        raise ValueError("BuilderConfig 'forget11' not found\nmore lines")

    monkeypatch.setattr(hub, "require", lambda *args, **options: "0" * 40)
    monkeypatch.setattr(datasets, "load_dataset", broken)
    with pytest.raises(UserError, match=r"cannot read 'forget11' of the dataset 'locuslab/TOFU' .*: BuilderConfig"):
        hub.dataset_rows("locuslab/TOFU", "forget11")


def test_dataset_rows_come_as_plain_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{"question": "Who?", "answer": "Nobody.", "perturbed_answer": ["A", "B"]}]
    monkeypatch.setattr(hub, "require", lambda *args, **options: "0" * 40)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: datasets.Dataset.from_list(rows))
    assert hub.dataset_rows("locuslab/TOFU", "forget10_perturbed") == rows
