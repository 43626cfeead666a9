"""What tests of several parts use: pulled models, recorded clips, the `--full` option."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from app.errors import ModelNotPulled
from app.model_cache import ModelCache
from app.model_table import ModelKind, default_entry, find_entry

REPOSITORY = Path(__file__).resolve().parent.parent

# one thread unless a test sets otherwise: two cores are shared by everything that runs
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Triton decides on import whether kernels are interpreted, which is how tests run them on a CPU
os.environ.setdefault("TRITON_INTERPRET", "1")


# A change is judged by the same examples on every machine, --full looks for new ones. No test of
# ours asserts a time, so neither does Hypothesis; `family` and its like are read, never written.
_COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("same examples", _COMMON, derandomize=True, database=None)
settings.register_profile("new examples", _COMMON)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("new examples" if config.getoption("--full") else "same examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        slow = [item for item in items if "slow" in item.keywords]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if "slow" not in item.keywords]
    gpu = [item for item in items if "gpu" in item.keywords]
    if gpu:
        import torch  # takes seconds, so only where a test asks for a GPU

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


def _pulled(model_id: str) -> Path:
    entry = find_entry(model_id)
    assert entry is not None, model_id
    try:
        return ModelCache().require(entry)
    except ModelNotPulled as error:
        pytest.fail(f"{error} (scripts/test pulls what the tests need)", pytrace=False)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default language model: a GGUF file."""
    return _pulled(default_entry(ModelKind.LLM).id)


@pytest.fixture(scope="session")
def whisper_path() -> Path:
    """The default recogniser: a folder with a CTranslate2 model."""
    return _pulled(default_entry(ModelKind.ASR).id)


@pytest.fixture(scope="session")
def smart_turn_path() -> Path:
    """An ONNX file."""
    return _pulled(default_entry(ModelKind.SMART_TURN).id)


@pytest.fixture(scope="session")
def tokenizer_dir() -> Callable[[str], Path]:
    """`tokenizer_dir("qwen3" | "llama3_1" | "llama2")`: a folder with tokenizer.json."""

    def folder(name: str) -> Path:
        return _pulled(f"tokenizer-{name}")

    return folder


@pytest.fixture(scope="session")
def clips_dir() -> Path:
    """Recorded clips with their `manifest.tsv`, beside the checkout."""
    folder = REPOSITORY.parent / "shared" / "clips"
    if not (folder / "manifest.tsv").is_file():
        pytest.skip("no recorded clips at ../shared/clips")
    return folder
