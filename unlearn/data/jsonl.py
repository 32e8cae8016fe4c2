"""Files with one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unlearn.errors import UserError


def read_json_lines(path: Path, key: str = "data.source") -> list[dict[str, Any]]:
    """All objects of a file, blank lines left out. A fault names the setting `key`, the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{key}: needs the file {path.name}, found none in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{key}: cannot read {path}: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{key}: {path} line {number} is not valid JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise UserError(f"{key}: {path} line {number} needs a JSON object, found {type(row).__name__}")
        rows.append(row)
    return rows
