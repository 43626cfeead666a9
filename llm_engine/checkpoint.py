"""Files with a model in them: a folder with config.json and safetensors, or a .gguf file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kernels.linear import DenseWeight, LinearWeight
from llm_engine.config import ModelConfig, UnsupportedModel
from llm_engine.gguf import GGUFTensors
from llm_engine.weights import ModelFileError, TensorSource

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pickle", "*.ckpt")


class SafetensorsFolder:
    """A folder with config.json and one or several safetensors files.

    Raises:
        ModelFileError: a file is missing or damaged, or only pickled weights are there.
        UnsupportedModel, BadModelConfig: from the configuration.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = _read_json(path / "config.json")
        if "quantization_config" in raw:
            method = (raw["quantization_config"] or {}).get("quant_method")
            raise UnsupportedModel("quantised checkpoint", method, "float safetensors, or GGUF")
        self.config = ModelConfig.from_hf(raw)
        self._files: dict[str, Any] = {}
        for file in self._shards():
            try:
                handle = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as cause:
                raise ModelFileError(file, f"not readable as safetensors: {cause}") from cause
            self._files.update((name, handle) for name in _tensor_names(handle))

    def _shards(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            names = sorted(set(_read_json(index).get("weight_map", {}).values()))
            if any(Path(name).name != name for name in names):
                raise ModelFileError(index, f"names files outside its folder: {names}")
            shards = [self.path / name for name in names]
        else:
            shards = sorted(self.path.glob("*.safetensors"))
        if missing := [shard.name for shard in shards if not shard.exists()]:
            raise ModelFileError(self.path, f"missing {', '.join(missing)}")
        if shards:
            return shards
        pickles = sorted(file.name for kind in _PICKLES for file in self.path.glob(kind))
        if pickles:
            raise ModelFileError(
                self.path, f"only pickled weights ({pickles[0]}); safetensors or GGUF are needed"
            )
        raise ModelFileError(self.path, "no *.safetensors file")

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def vector(self, name: str) -> torch.Tensor:
        return self._tensor(name).float()

    def linear(self, name: str) -> LinearWeight:
        return DenseWeight(self._tensor(name))

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise UnsupportedModel(f"dtype of {name}", tensor.dtype, "float32, float16, bfloat16")
        return tensor


def _tensor_names(handle: Any) -> list[str]:
    return list(handle.keys())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise ModelFileError(path, f"cannot be read: {cause.strerror}") from cause
    except ValueError as cause:
        raise ModelFileError(path, f"is not JSON: {cause}") from cause
    if not isinstance(content, dict):
        raise ModelFileError(path, "is not a JSON object")
    return content


def open_model(path: Path) -> tuple[TensorSource, ModelConfig]:
    """The tensors and configuration of a .gguf file or a safetensors folder.

    Raises:
        ModelFileError: nothing usable is there.
        UnsupportedModel, BadModelConfig, BadGGUF: what is there cannot be used.
    """
    if path.is_dir():
        folder = SafetensorsFolder(path)
        return folder, folder.config
    if not path.exists():
        raise ModelFileError(path, "no such file or folder")
    if path.suffix != ".gguf":
        raise ModelFileError(path, "is neither a .gguf file nor a folder with safetensors")
    file = GGUFTensors(path)
    return file, file.config
