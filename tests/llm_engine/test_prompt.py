from __future__ import annotations

import dataclasses

import pytest

from llm_engine.prompt import Segment, Snapshot


def test_a_snapshot_is_its_segments_in_order() -> None:
    segments = (
        Segment("system", "prefix", (1, 2)),
        Segment("slot", "slot", ()),
        Segment("end", "suffix", (9,)),
    )
    snapshot = Snapshot(3, segments)
    assert snapshot.token_ids == (1, 2, 9)
    assert snapshot.num_tokens == 3
    assert not snapshot.at_pause


def test_snapshots_cannot_change_and_compare_by_content() -> None:
    snapshot = Snapshot(0, (Segment("slot", "slot", (4,)),))
    assert snapshot == Snapshot(0, (Segment("slot", "slot", (4,)),))
    assert hash(snapshot) == hash(Snapshot(0, (Segment("slot", "slot", (4,)),)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.revision = 1  # type: ignore[misc]
