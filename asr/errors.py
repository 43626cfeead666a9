"""Errors of the recogniser package.

AsrError
├── AudioError            a file or stream of audio cannot be used
│   ├── NotAudio          no decoder recognises it
│   ├── EmptyAudio        it holds no samples
│   ├── TruncatedAudio    it ends before its header says
│   ├── UnsupportedRate
│   └── UnsupportedChannels
├── ModelNotFound         a model's file or folder is missing
├── ModelBroken           a model's file cannot be loaded
├── DeviceUnavailable     the recogniser cannot run there on this machine
├── UnsupportedComputeType  the device does not compute like that
└── UnsupportedLanguage   the model does not know the language asked for
"""

from __future__ import annotations

from collections.abc import Iterable


class AsrError(Exception):
    """Base of everything this package raises on purpose."""


class AudioError(AsrError):
    pass


class NotAudio(AudioError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not audio in a format that can be decoded")


class EmptyAudio(AudioError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} holds no audio samples")


class TruncatedAudio(AudioError):
    def __init__(self, name: str, expected: int, found: int, unit: str) -> None:
        super().__init__(f"{name} is truncated: {expected} {unit} announced, {found} found")


class UnsupportedRate(AudioError):
    def __init__(self, sample_rate_hz: int) -> None:
        super().__init__(f"sample rate {sample_rate_hz} Hz is outside 4000 to 192000 Hz")


class UnsupportedChannels(AudioError):
    def __init__(self, num_channels: int) -> None:
        super().__init__(f"{num_channels} channels; 1 to 8 can be mixed down")


class ModelNotFound(AsrError):
    def __init__(self, path: object) -> None:
        super().__init__(f"no model at {path}")


class ModelBroken(AsrError):
    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"the model at {path} cannot be loaded: {why}")


class DeviceUnavailable(AsrError):
    def __init__(self, device: str, why: str) -> None:
        super().__init__(f"the recogniser cannot run on {device!r}: {why}; cpu is always there")


class UnsupportedComputeType(AsrError):
    def __init__(self, compute_type: str, device: str, supported: Iterable[str]) -> None:
        super().__init__(
            f"the recogniser does not compute in {compute_type!r} on {device}; "
            f"supported: {', '.join(sorted(supported))}"
        )


class UnsupportedLanguage(AsrError):
    def __init__(self, language: str) -> None:
        super().__init__(f"the recogniser does not know the language {language!r}")
