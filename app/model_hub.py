"""Snapshots from the Hugging Face hub, weights only in formats that cannot carry code.

The only importer of huggingface_hub.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from app.errors import CacheUnusable, IndexUnreachable, ModelNotFound
from app.model_table import ModelKind

# Never *.bin, *.pt, *.pkl or *.py: PyTorch's checkpoints are pickles. A CTranslate2 model is
# `model.bin` by that exact name, in a format of its own, and CTranslate2 refuses anything else.
_ALLOWED = {
    ModelKind.LLM: ("*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt"),
    ModelKind.ASR: ("model.bin", "*.json", "vocabulary.txt"),
}


def fetch_snapshot(repo_id: str, kind: ModelKind, file_name: str | None = None) -> Path:
    """The folder of `owner/name`'s snapshot, or one GGUF file of it where `file_name` is given.

    Kept in the hub client's own cache, which checks its files. Raises ModelNotFound,
    IndexUnreachable, CacheUnusable.
    """
    allowed = [file_name] if file_name else list(_ALLOWED[kind])
    try:
        folder = Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=allowed))
    except RepositoryNotFoundError as error:
        raise ModelNotFound(repo_id, "the Hugging Face hub has no such repository") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx2.HTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IndexUnreachable("the Hugging Face hub", repo_id, reason) from error
    except OSError as error:
        raise CacheUnusable(Path(huggingface_hub.constants.HF_HUB_CACHE), str(error)) from error
    return folder / file_name if file_name else folder
