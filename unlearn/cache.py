"""Results that cost minutes and depend on nothing but their inputs: kept under a hash of those inputs.

A folder is built under another name and renamed when it is whole, so that a killed run leaves nothing a later one would
trust; a lock lets two runs that need the same thing wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from unlearn.errors import UserError

MARKER = "complete.json"


def content_hash(parts: Any) -> str:
    """Hash of anything JSON can hold, 16 hex digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class Cache:
    """Folders under `root/kind/hash`."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser()

    def folder(self, kind: str, key: dict[str, Any]) -> Path:
        return self.root / kind / content_hash(key)

    def has(self, kind: str, key: dict[str, Any]) -> bool:
        return (self.folder(kind, key) / MARKER).is_file()

    def get(self, kind: str, key: dict[str, Any], build: Callable[[Path], None]) -> tuple[Path, bool]:
        """The complete folder for `key`, and whether it was there already; `build` fills an empty folder.

        Raises UserError where the cache cannot be written.
        """
        folder = self.folder(kind, key)
        if self.has(kind, key):
            return folder, True
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if self.has(kind, key):
                    return folder, True
                self._build(folder, key, build)
        except OSError as error:
            raise UserError(f"cache_dir: cannot write {self.root}: {error.strerror or error}") from error
        return folder, False

    def _build(self, folder: Path, key: dict[str, Any], build: Callable[[Path], None]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
        try:
            build(partial)
            (partial / MARKER).write_text(json.dumps(key, indent=1, sort_keys=True))
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
