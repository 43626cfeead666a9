"""The reply side of one session: drafts, candidates to verify, and what is shown or delivered."""

from __future__ import annotations

from llm_engine.accounts import TurnAccount
from llm_engine.drafts import Candidate, Draft, DraftMemory, ReplyLimits
from llm_engine.events import (
    DraftChanged,
    EngineEvent,
    ReplyDelta,
    ReplyDone,
    SessionConfig,
    SessionId,
    TurnId,
)
from llm_engine.model_proposer import ModelProposer
from llm_engine.proposals import AdaptiveLength, NgramPool
from llm_engine.sampling import SampleRow
from llm_engine.tokenizer import Tokenizer

MAX_CANDIDATES = 32  # tokens of an earlier draft verified in one pass
MAX_PROPOSALS = 8  # tokens guessed from the pool
MIN_DRAFT_TOKENS = 12  # drafted on every snapshot that is drafted on
SURVIVAL_FADE = 0.7  # weight of what was known before of how many tokens survive a change


class TurnReply:
    """What is decided of the reply to the newest prompt, and what may come next.

    Tokens carry over from prompt to prompt as candidates only: a token is part of the reply once a
    pass over this prompt has chosen it, or an earlier pass over the very same ids had.
    """

    def __init__(
        self,
        session_id: SessionId,
        config: SessionConfig,
        tokenizer: Tokenizer,
        tie_bound: float,
        token_cost: float = 0.1,
        proposer: ModelProposer | None = None,
    ) -> None:
        """`token_cost`: what one more token adds to a pass, in passes of one token. `proposer` is
        asked where neither an earlier draft nor the pool has a guess."""
        self._session_id = session_id
        self._config = config
        self._tokenizer = tokenizer
        self._tie_bound = tie_bound
        self._proposer = proposer
        self._memory = DraftMemory()
        self._pool = NgramPool()
        self._candidate_length = AdaptiveLength(MAX_CANDIDATES, token_cost=token_cost)
        self._pool_length = AdaptiveLength(MAX_PROPOSALS, token_cost=token_cost)
        self._candidate = Candidate()
        self._proposals: tuple[int, ...] | None = None  # None: not looked for yet
        self._num_delivered = 0
        self._shown: list[int] = []
        self._survival = float(config.max_draft_tokens)  # tokens that outlive a changed prompt
        self._num_survived: int | None = None  # so far, while a carried draft is being checked
        self.account = TurnAccount()
        self.draft = self._new_draft(1)

    def _new_draft(self, room: int) -> Draft:
        max_tokens = min(self._config.sampling.max_tokens, room)
        limits = ReplyLimits(max_tokens, self._config.stop)
        return Draft(self._tokenizer, limits, self._tie_bound)

    # ---- prompts

    def start_turn(self) -> None:
        self._retire()
        self._memory.clear()
        self._candidate = Candidate()
        self.draft = self._new_draft(1)
        self.account = TurnAccount()
        self._shown, self._num_delivered = [], 0

    def change_prompt(
        self, old_ids: tuple[int, ...], new_ids: tuple[int, ...], *, room: int, is_exact: bool
    ) -> None:
        """The prompt is another (or its rows are): the draft becomes a candidate, unless the new
        prompt's reply is known from before. `room`: tokens the reply may have."""
        if old_ids == new_ids and self.draft.is_exact and is_exact:
            return  # only rows were lost
        self._retire()
        carried = Candidate()
        if self._config.keep_drafts:
            if old_ids != new_ids:
                self._memory.put(old_ids, self.draft)
            carried = Candidate.of(self.draft).then(self._candidate)
        known = self._memory.take(new_ids)
        self._pool.set_prompt(new_ids)
        self._proposals = None
        self._candidate = carried if known is None else Candidate()
        self._num_survived = 0 if self._candidate.token_ids else None
        self.draft = known or self._new_draft(room)
        if known is None:
            self.draft.is_exact = is_exact

    def limit(self, max_tokens: int) -> None:
        """The reply may have no more tokens than that."""
        self.draft = self.draft.limited(max_tokens)
        self._proposals = None

    def _retire(self) -> None:
        if self.draft.token_ids:
            self._pool.add(self.draft.token_ids)

    @property
    def num_candidates(self) -> int:
        """Tokens decided for an earlier prompt that wait to be verified."""
        return len(self._candidate.token_ids)

    # ---- deciding

    def propose(self, prompt_ids: tuple[int, ...], turn: TurnId = 0) -> tuple[int, ...]:
        """Tokens to verify behind the last decided one."""
        if self._proposals is None:
            found = self._look_up(prompt_ids, turn)[: max(0, self.draft.room - 1)]
            ends = self._tokenizer.eos_ids  # never run: the logits before it tell
            end = next((i for i, token in enumerate(found) if token in ends), len(found))
            self._proposals = found[:end]
        return self._proposals

    def _look_up(self, prompt_ids: tuple[int, ...], turn: TurnId) -> tuple[int, ...]:
        if self._candidate.token_ids:
            return self._candidate.token_ids[: max(1, self._candidate_length.next_length())]
        if not self._config.use_ngram_pool and self._proposer is None:
            return ()
        length = self._pool_length.next_length()
        if not length:
            return ()
        context = (*prompt_ids, *self.draft.token_ids)
        found = self._pool.propose(context, length) if self._config.use_ngram_pool else ()
        if found or self._proposer is None:
            return found
        config, index = self._config, len(self.draft)
        first = SampleRow(config.sampling, config.seed, turn, index, context)
        return self._proposer.propose(context, length, first)

    def decide(
        self,
        proposals: tuple[int, ...],
        token_ids: tuple[int, ...],
        margins: tuple[float, ...],
        now_s: float,
    ) -> int:
        """Take the tokens of a pass up to the first that its proposal missed; -> how many of the
        proposals are now part of the reply (their rows stay)."""
        is_early = self.account.committed_at_s is None
        candidate = self._candidate
        num_kept = num_right = 0
        before = len(self.draft)
        for place, (token, margin) in enumerate(zip(token_ids, margins, strict=True)):
            is_right = place < len(proposals) and proposals[place] == token
            is_kept = candidate.token_ids[place : place + 1] == (token,)
            at_s = candidate.decided_at_s[place] if is_kept else now_s
            self.draft.add(token, margin, at_s, is_early=is_early or is_kept)
            if len(self.draft) == before + place:
                break  # the end of message: no token of the reply
            num_right += is_right
            num_kept += is_kept
            if self.draft.finish is not None or not is_right:
                break
        length = self._candidate_length if candidate.token_ids else self._pool_length
        length.observe(len(proposals), num_right)
        self._candidate = candidate.after(self.draft.token_ids[before:])
        self._proposals = None
        self._learn_survival(num_kept)
        self.account.count_decided(len(self.draft) - before - num_kept, num_kept)
        return num_right

    def _learn_survival(self, num_kept: int) -> None:
        if self._num_survived is None:
            return
        self._num_survived += num_kept
        if not self._candidate.token_ids:
            fresh = (1 - SURVIVAL_FADE) * self._num_survived
            self._survival = SURVIVAL_FADE * self._survival + fresh
            self._num_survived = None

    def wants_first_tokens(self, *, at_pause: bool) -> bool:
        """The draft is not long enough to stop until commit. Away from a pause it grows no longer
        than twice what usually survives the next words."""
        limit = self._config.max_draft_tokens
        if not at_pause:
            limit = min(limit, max(MIN_DRAFT_TOKENS, round(2 * self._survival)))
        if self.draft.finish is not None or len(self.draft) >= limit:
            return False
        return not (self._config.draft_first_sentence and self.draft.has_sentence)

    # ---- telling

    def show(self, revision: int) -> list[EngineEvent]:
        """The draft as it stands for this revision."""
        token_ids = self.draft.token_ids
        if not token_ids and self.draft.finish is None:
            return []
        pairs = enumerate(zip(self._shown, token_ids, strict=False))
        shorter = min(len(self._shown), len(token_ids))
        keep = next((i for i, (old, new) in pairs if old != new), shorter)
        self._shown = list(token_ids)
        return [
            DraftChanged(
                self._session_id,
                revision,
                keep,
                tuple(token_ids[keep:]),
                self.draft.text,
                self.draft.finish is not None,
            )
        ]

    def deliver(self, turn: TurnId, now_s: float) -> list[EngineEvent]:
        """What is decided and not yet delivered; the end too if it is reached."""
        events: list[EngineEvent] = []
        first, draft = self._num_delivered, self.draft
        text = "".join(draft.texts[first:]) + draft.tail
        if len(draft) > first or text:
            token_ids = tuple(draft.token_ids[first:])
            times = tuple(draft.decided_at_s[first:])
            events.append(ReplyDelta(self._session_id, turn, first, token_ids, text, times))
            self._num_delivered = len(draft)
        if draft.finish is not None:
            stats = self.account.stats(draft, self._num_delivered, now_s)
            events.append(ReplyDone(self._session_id, turn, draft.finish, stats))
        return events

    def abandon(self, turn: TurnId, now_s: float, error: str | None = None) -> list[EngineEvent]:
        """End a committed reply before its own end."""
        stats = self.account.stats(self.draft, self._num_delivered, now_s)
        if error is None:
            return [ReplyDone(self._session_id, turn, "cancelled", stats)]
        return [ReplyDone(self._session_id, turn, "error", stats, error)]
