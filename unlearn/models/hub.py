"""Everything that may touch the network: is a repository there, may we read it, is it here already.

One line per failure, within seconds; nothing is loaded half.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearn.errors import UserError

TIMEOUT_S = 3.0
"""How long the hub may take to answer the question whether a repository can be read."""


def is_folder(path: str) -> bool:
    return Path(path).expanduser().is_dir()


def looks_like_folder(path: str) -> bool:
    """A path and not a hub id: `./x`, `/x`, `~/x`, `a/b/c` or anything that exists."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).expanduser().exists()


def cached_revision(repo_id: str, revision: str | None = None, kind: str = "model") -> str | None:
    """The commit of a copy in the local hub cache that has what a run reads, or None."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        repo_id, "config.json" if kind == "model" else "README.md", revision=revision, repo_type=kind
    )
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    return folder.name if kind != "model" or any(folder.glob("*.safetensors")) else None


@lru_cache
def require(repo_id: str, key: str, revision: str | None = None, kind: str = "model") -> str:
    """The commit of a repository that can be read now: from the local cache, else by asking the hub once.

    Raises UserError: gated, not found, without safetensors, or out of reach, each with what to do.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        cached = cached_revision(repo_id, revision, kind)
    except HFValidationError:
        raise UserError(f"{key}: needs a folder that exists or a hub id; found '{repo_id}'") from None
    if cached is not None:
        return cached
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{key}: '{repo_id}' is not in the local hub cache, and HF_HUB_OFFLINE is set")
    what = f"{key}: the {kind} '{repo_id}' on the hub"
    try:
        api = HfApi()
        info: Any = api.repo_info(repo_id, revision=revision, repo_type=kind, timeout=TIMEOUT_S)
        api.auth_check(repo_id, repo_type=kind)
    except GatedRepoError:
        raise UserError(f"{what} is gated: accept its terms on its page and log in with `hf auth login`") from None
    except RevisionNotFoundError:
        raise UserError(f"{what} has no revision '{revision}'") from None
    except RepositoryNotFoundError:
        raise UserError(f"{what} does not exist, or is private: check the name, or `hf auth login`") from None
    except Exception as error:
        raise UserError(
            f"{what} cannot be reached ({type(error).__name__}): go online, or give a local folder instead"
        ) from None
    files = [file.rfilename for file in info.siblings or ()]
    if key != "model.tokenizer" and kind == "model" and not any(name.endswith(".safetensors") for name in files):
        raise UserError(f"{what} has no *.safetensors (pickled weights are never loaded)")
    return str(info.sha)


def dataset_rows(repo_id: str, name: str, split: str = "train", key: str = "data.source") -> list[dict[str, Any]]:
    """All rows of one configuration of a dataset on the hub (or in the local hub cache). A fault names `key`."""
    commit = require(repo_id, key, kind="dataset")
    import datasets

    datasets.disable_progress_bars()
    try:
        return list(datasets.load_dataset(repo_id, name, split=split, revision=commit))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{key}: cannot read '{name}' of the dataset '{repo_id}' on the hub: {reason}") from None
