"""From what a user names (an id, a path, a Hugging Face id, or nothing) to model files on disk.

The table is `model_table.py`, the cache with its locks and hashes `model_cache.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from app.errors import ModelNotFound, UnknownModel
from app.model_cache import ModelCache, OnProgress
from app.model_table import ModelKind, default_entry, entries_of, find_entry

# owner/name, with a GGUF file inside it as an optional third part
_HUB_ID = re.compile(r"([\w][\w.-]*/[\w.-]+)(?:/([\w.-]+\.gguf))?")


def resolve_llm(name: str | Path | None, on_progress: OnProgress | None = None) -> Path:
    """A `.gguf` file, or a folder with `config.json` and `*.safetensors`; fetched if need be.

    `name`: an id of the table, a path, `owner/name` or `owner/name/FILE.gguf` of the Hugging Face
    hub; None is the default model. Raises UnknownModel, ModelNotFound, or what fetching raises
    (app/errors.py).
    """
    return _resolve(name, ModelKind.LLM, on_progress)


def resolve_asr(name: str | Path | None, on_progress: OnProgress | None = None) -> Path:
    """A folder with a CTranslate2 Whisper model. `name` and errors as for `resolve_llm`; it may
    also be a name of faster-whisper's, such as "small.en"."""
    return _resolve(name, ModelKind.ASR, on_progress)


def resolve_smart_turn(name: str | Path | None, on_progress: OnProgress | None = None) -> Path:
    """An `.onnx` file. `name`: an id of the table, a path, or None for the default."""
    return _resolve(name, ModelKind.SMART_TURN, on_progress)


def _resolve(name: str | Path | None, kind: ModelKind, on_progress: OnProgress | None) -> Path:
    if name is None:
        return ModelCache().pull(default_entry(kind), on_progress)
    entry = find_entry(str(name))
    if entry is not None and entry.kind is kind:
        return ModelCache().pull(entry, on_progress)
    path = Path(name).expanduser()
    if path.exists():
        return _checked(path, kind)
    whisper_names = _whisper_names() if kind is ModelKind.ASR else {}
    hub_id = _HUB_ID.fullmatch(whisper_names.get(str(name), str(name)))
    if hub_id and kind in (ModelKind.LLM, ModelKind.ASR):
        from app.model_hub import fetch_snapshot  # the hub's client takes half a second to import

        return _checked(fetch_snapshot(hub_id[1], kind, hub_id[2]), kind)
    if isinstance(name, Path) or "/" in name or path.suffix in (".gguf", ".onnx"):
        raise ModelNotFound(name, "no such file or folder")
    raise UnknownModel(name, kind, [*(known.id for known in entries_of(kind)), *whisper_names])


def _whisper_names() -> dict[str, str]:
    from asr.whisper import known_models  # its libraries take a second to import

    return known_models()


def _checked(path: Path, kind: ModelKind) -> Path:
    """`path` if it looks like a model of `kind`; what the files hold is the loader's business."""
    match kind:
        case ModelKind.LLM if path.is_file():
            if path.suffix != ".gguf":
                raise ModelNotFound(path, "a model file must be .gguf")
        case ModelKind.LLM:
            if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
                raise ModelNotFound(path, "a model folder holds config.json and *.safetensors")
        case ModelKind.ASR:
            if not (path / "model.bin").is_file() or not (path / "config.json").is_file():
                raise ModelNotFound(path, "a CTranslate2 folder holds model.bin and config.json")
        case _:
            if not path.is_file() or path.suffix != ".onnx":
                raise ModelNotFound(path, "a Smart Turn model is one .onnx file")
    return path
