"""The default model over revised transcripts: speculation on, off and transformers agree."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from llm_engine.chat import ChatMessage, ChatTemplate
from llm_engine.engine import Engine
from llm_engine.events import SamplingParams, SessionConfig, SpeculationTrigger, SuffixPolicy
from llm_engine.model import load_model
from llm_engine.prompt import Snapshot
from llm_engine.tokenizer import Tokenizer
from llm_engine.transformers_peer import twin_of
from tests.llm_engine.engine_rig import Events, first_difference, run

SYSTEM = "You are a helpful voice assistant. Answer in one short sentence."
SPOKEN = (
    "how old is the brooklyn bridge",
    "could you tell me what the weather is like in paris",
    "i would like to book a table for four people",
    "what is the tallest mountain in europe",
    "which train goes to the airport before noon",
)
MAX_TOKENS = 12


class Chat:
    """One engine over the default model, and a caller who corrects himself."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = Tokenizer(path)
        self.template = ChatTemplate(self.tokenizer)
        model = load_model(path, "float32", num_threads=1)
        self.engine = Engine(model, self.tokenizer)
        self.twin = twin_of(model)

    def generate(self, ids: tuple[int, ...]) -> list[int]:
        """The twin's greedy reply."""
        given = torch.tensor([ids])
        with torch.inference_mode():
            out = self.twin.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                eos_token_id=sorted(self.tokenizer.eos_ids),
                pad_token_id=0,
            )
        reply: list[int] = out[0, len(ids) :].tolist()
        return reply

    def open(self, **settings: object) -> tuple[str, Events]:
        events = Events()
        sampling = SamplingParams(max_tokens=MAX_TOKENS)
        settings = {"use_ngram_pool": True, **settings}
        config = SessionConfig(sampling=sampling, **settings)  # type: ignore[arg-type]
        return self.engine.open(config, events), events

    def life(self, seed: int) -> list[tuple[Snapshot, tuple[int, ...]]]:
        """Two turns of growing and revised words; the committed prompts and their replies."""
        random = Random(seed)
        policy = random.choice(list(SuffixPolicy))
        session, events = self.open(draft_policy=policy)
        history: list[ChatMessage] = []
        answers = []
        revision = 0
        for turn in range(2):
            words = random.choice(SPOKEN).split()
            for count in range(2, len(words), 3):
                heard = [*words[:count], random.choice(("", "uh", "the", words[0]))]
                segments = self.template.segments(SYSTEM, history, " ".join(heard).strip())
                revision += 1
                self.engine.update(session, Snapshot(revision, segments, random.random() < 0.3))
                run(self.engine, random.choice((1, 3, 100)))
            text = " ".join(words) + random.choice(("?", "", "."))
            segments = self.template.segments(SYSTEM, history, text)
            revision += 1
            snapshot = Snapshot(revision, segments, at_pause=True)
            assert self.engine.commit(session, snapshot) == turn
            run(self.engine)
            answers.append((snapshot, events.reply(turn)))
            history += [ChatMessage("user", text), ChatMessage("assistant", events.text(turn))]
        self.engine.close(session)
        run(self.engine)
        return answers


@pytest.fixture(scope="module")
def chat(smollm2_path: Path) -> Chat:
    return Chat(smollm2_path)


@pytest.mark.models
def test_revised_transcripts_get_the_reply_of_their_final_words(
    chat: Chat, request: pytest.FixtureRequest
) -> None:
    num_lives = 60 if request.config.getoption("--full") else 5
    num_replies = num_ties = 0
    for seed in range(num_lives):
        answers = chat.life(seed)
        session, plain = chat.open(trigger=SpeculationTrigger.OFF, use_ngram_pool=False)
        for turn, (snapshot, reply) in enumerate(answers):
            chat.engine.commit(session, snapshot)
            run(chat.engine)
            stats = plain.done[turn].stats
            generated = chat.generate(snapshot.token_ids)
            ends = chat.tokenizer.eos_ids
            end = next((i for i, token in enumerate(generated) if token in ends), len(generated))
            for other in (plain.reply(turn), generated[:end]):
                num_replies += 1
                index = first_difference(reply, other)
                if index is not None:
                    assert stats.tie_index is not None and index >= stats.tie_index
                    num_ties += 1
        chat.engine.close(session)
        run(chat.engine)
    print(f"\n{num_replies} replies compared, {num_ties} differed, each from a tie on")
    assert num_ties <= max(1, num_replies // 1000)
