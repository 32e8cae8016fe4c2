"""The cache: built once, complete or absent, whatever ends a build."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from unlearn.cache import MARKER, Cache
from unlearn.errors import UserError

KEY = {"rows": "abc", "seed": 0}


def write(folder: Path) -> None:
    (folder / "weights").write_text("all of them")


def test_built_once_and_then_found(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first, cached = cache.get("models", KEY, write)
    assert not cached
    again, cached = cache.get("models", KEY, pytest.fail)
    assert cached
    assert again == first
    assert (again / "weights").read_text() == "all of them"


def test_another_key_is_another_folder(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.folder("models", KEY) != cache.folder("models", {**KEY, "seed": 1})
    assert cache.folder("models", KEY) == cache.folder("models", dict(reversed(KEY.items())))


def test_a_build_that_fails_leaves_nothing_that_is_trusted(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError("killed")

    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="killed"):
        cache.get("models", KEY, fail)
    assert not cache.has("models", KEY)
    assert [path for path in (tmp_path / "models").iterdir() if path.is_dir()] == []
    assert not cache.get("models", KEY, write)[1]


def test_a_folder_without_its_marker_is_built_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder, _ = cache.get("models", KEY, write)
    (folder / MARKER).unlink()
    (folder / "weights").write_text("half of th")
    folder, cached = cache.get("models", KEY, write)
    assert not cached
    assert (folder / "weights").read_text() == "all of them"


def test_two_runs_that_need_the_same_build_it_once(tmp_path: Path) -> None:
    builds: list[str] = []

    def slow(folder: Path) -> None:
        builds.append(folder.name)
        time.sleep(0.2)
        write(folder)

    threads = [threading.Thread(target=lambda: Cache(tmp_path).get("models", KEY, slow)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cache_dir: cannot write"):
        Cache(tmp_path / "file").get("models", KEY, write)


def test_no_space_left_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        write(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="cache_dir: cannot write .* No space left"):
        Cache(tmp_path).get("models", KEY, full)
    assert not Cache(tmp_path).has("models", KEY)
