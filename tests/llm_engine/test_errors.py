from __future__ import annotations

from llm_engine import errors


def test_every_error_has_a_code_of_its_own_and_names_the_value() -> None:
    made = [
        errors.UnknownSession("s9"),
        errors.StaleRevision(3, 9),
        errors.PromptTooLong(9, 4),
        errors.EmptyPrompt(9),
        errors.CacheFull(9, 4),
        errors.TooManySessions(9),
        errors.BadSessionConfig("max_draft_tokens", -9, "0 or more"),
        errors.EngineUnavailable("9 failures"),
    ]
    assert len({error.code for error in made}) == len(made)
    assert all("9" in str(error) and isinstance(error, errors.EngineError) for error in made)
