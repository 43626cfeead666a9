from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from app.__main__ import main
from app.bench.arguments import count


def test_a_count_is_a_whole_number_from_one_on() -> None:
    assert count("12") == 12
    for wrong in ("0", "-1", "1.5", "two", ""):
        with pytest.raises(ArgumentTypeError, match="from 1 on"):
            count(wrong)


@pytest.mark.parametrize("part", ["engine", "model"])
@pytest.mark.parametrize("option", ["--threads", "--repeats"])
def test_benches_refuse_none_of_what_they_count(
    part: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["app", "bench", part])
    with pytest.raises(SystemExit) as ended:
        main(["bench", part, option, "0"])
    assert ended.value.code == 2
    assert f"{option}: '0' is not a whole number" in capsys.readouterr().err
