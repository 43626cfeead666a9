from __future__ import annotations

from typing import Any

from llm_engine.accounts import TurnAccount
from llm_engine.drafts import Draft, ReplyLimits
from tests.llm_engine.engine_rig import ByteTokenizer


def test_drafted_is_accepted_or_wasted_and_passes_count_from_the_commit_on() -> None:
    tokenizer: Any = ByteTokenizer()
    draft = Draft(tokenizer, ReplyLimits(9, ()), 0.1)
    account = TurnAccount()
    account.count_pass(10, is_verify=False)
    account.count_decided(5, 0)
    account.commit(2.0, num_prompt=10, num_missing=3)
    account.count_pass(4, is_verify=True)
    account.count_decided(1, 2)
    for token, at_s, is_early in ((97, 1.0, True), (98, 1.5, True), (99, 3.0, False)):
        draft.add(token, 1.0, at_s, is_early=is_early)
    stats = account.stats(draft, 3, 4.0)
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.wasted_tokens) == (5, 2, 3)
    assert (stats.num_passes, stats.verify_passes, stats.passes_after_commit) == (2, 1, 1)
    assert (stats.prompt_tokens, stats.cached_prompt_tokens) == (10, 7)
    assert (stats.computed_tokens, stats.tokens_after_commit) == (14, 3)
    assert (stats.first_token_at_s, stats.committed_at_s, stats.finished_at_s) == (1.0, 2.0, 4.0)
    assert account.stats(draft, 0, 4.0).first_token_at_s is None
