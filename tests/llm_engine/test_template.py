from __future__ import annotations

from datetime import datetime

import pytest

from llm_engine.template import (
    BrokenChatTemplate,
    Hole,
    NoChatTemplate,
    Piece,
    Shape,
    Skeletons,
    TemplateRejected,
    TemplateRewritesText,
)
from llm_engine.tokenizer import Tokenizer
from llm_engine.vocabulary import ControlToken


class FakeTokenizer(Tokenizer):
    """What a template reads of a tokenizer, without a vocabulary."""

    def __init__(self, template: str | None, *control: ControlToken) -> None:
        self.chat_template = template
        self.named_tokens = {"eos_token": "<e>"}
        self.control = (ControlToken(1, "<s>"), ControlToken(2, "<e>"), *control)


def skeleton(
    template: str, *roles: str, blank: str | None = None, control: tuple[ControlToken, ...] = ()
) -> list[tuple[str, str] | int]:
    """Pieces as (text, owner) and holes as their message's index."""
    blanks = (*(None for _ in roles[1:]), blank)
    parts = skeletons(template, *control).of(Shape(roles, blanks))
    return [part.index if isinstance(part, Hole) else (part.text, part.owner) for part in parts]


def skeletons(template: str | None, *control: ControlToken) -> Skeletons:
    return Skeletons(FakeTokenizer(template, *control), datetime(2024, 7, 26))


PLAIN = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def test_a_prompt_is_cut_behind_the_end_of_each_message() -> None:
    assert skeleton(PLAIN, "system", "user", "assistant", "user") == [
        ("<s>", "system"), ("system\n", "system"), 0, ("<e>", "system"), ("\n", "system"),
        ("<s>", "history.0"), ("user\n", "history.0"), 1, ("<e>", "history.0"), ("\n", "history.0"),
        ("<s>", "history.1"), ("assistant\n", "history.1"), 2,
        ("<e>", "history.1"), ("\n", "history.1"),
        ("<s>", "header"), ("user\n", "header"), 3,
        ("<e>", "suffix"), ("\n", "suffix"), ("<s>", "suffix"), ("assistant\n", "suffix"),
    ]  # fmt: skip


def test_control_tokens_carry_their_ids() -> None:
    parts = skeletons(PLAIN).of(Shape(("user",), (None,)))
    ids = {part.text: part.control_id for part in parts if isinstance(part, Piece)}
    assert ids == {"<s>": 1, "user\n": None, "<e>": 2, "\n": None, "assistant\n": None}


def test_of_control_tokens_that_begin_alike_the_longest_is_meant() -> None:
    longer = ControlToken(3, "<s>user")
    assert skeleton("<s>user{{ messages[0].content }}", "user", control=(longer,)) == [
        ("<s>user", "header"),
        0,
    ]


@pytest.mark.parametrize(
    ("expression", "left", "right"),
    [
        ("m.content", "", ""),
        ("m.content | trim", "\n ", "\n "),
        ("m.content.strip()", "\n ", "\n "),
        ("m.content.lstrip()", "\n ", ""),
        ("m.content.rstrip('\\n')", "", "\n"),
        ("m.content.lstrip(' ')", " ", ""),
        ("('x' + m.content).strip()", "", "\n "),
    ],
)
def test_what_a_template_trims_is_found_out(expression: str, left: str, right: str) -> None:
    template = "{% for m in messages %}[\n{{ " + expression + " }}\n]{% endfor %}"
    parts = skeletons(template).of(Shape(("system", "user"), (None, None)))
    holes = [part for part in parts if isinstance(part, Hole)]
    assert holes == [Hole(0, left, right), Hole(1, left, right)]


def test_a_blank_message_is_rendered_as_the_template_would() -> None:
    trimming = "<s>{{ ('intro\n\n' + messages[0].content).strip() }}<e>"
    assert skeleton(trimming, "user", blank="") == [
        ("<s>", "header"), ("intro", "header"), 0, ("<e>", "suffix"),
    ]  # fmt: skip


def test_a_template_may_ask_whether_there_is_a_text() -> None:
    asking = (
        "<s>{% if messages[0].content %}said: {{ messages[0].content }}{% else %}nothing{% endif %}"
    )
    assert skeleton(asking, "user") == [("<s>", "header"), ("said: ", "header"), 0]
    assert skeleton(asking, "user", blank="") == [("<s>", "header"), 0, ("nothing", "suffix")]


def test_a_model_without_a_template_is_refused() -> None:
    tokenizer = FakeTokenizer(None)
    tokenizer.path = "somewhere"  # type: ignore[assignment]
    with pytest.raises(NoChatTemplate, match="somewhere"):
        Skeletons(tokenizer, datetime(2024, 1, 1))


def test_a_template_that_cannot_be_read_is_refused() -> None:
    tokenizer = FakeTokenizer("{% if %}")
    tokenizer.path = "somewhere"  # type: ignore[assignment]
    with pytest.raises(BrokenChatTemplate, match="somewhere"):
        Skeletons(tokenizer, datetime(2024, 1, 1))


def test_a_template_that_fails_while_it_runs_is_refused() -> None:
    with pytest.raises(TemplateRejected, match="concatenate"):
        skeleton("{{ messages[0].content + 1 }}", "user")


def test_roles_that_no_form_of_the_conversation_fits_are_named() -> None:
    deaf = (
        "{% for m in messages %}"
        "{% if m.role == 'assistant' %}{{ raise_exception('users only') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(TemplateRejected, match=r"assistant, user: users only"):
        skeleton(deaf, "assistant", "user")


ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if m.role == 'user' %}<s>{{ m.content }}<e>{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("roles", "parts"),
    [
        (["assistant", "user"], ["<s>", "<e>", 0, "<s>", 1, "<e>"]),
        (["system", "assistant", "user"], ["<s>", 0, "<e>", 1, "<s>", 2, "<e>"]),
        (["user", "system", "user"], ["<s>", 0, "\n\n", 1, "\n\n", 2, "<e>"]),
        (
            ["system", "assistant", "system", "user"],
            ["<s>", 0, "<e>", 1, "<s>", 2, "\n\n", 3, "<e>"],
        ),
    ],
)
def test_a_conversation_of_any_order_of_roles_is_made_to_alternate(
    roles: list[str], parts: list[str | int]
) -> None:
    found = skeleton(ALTERNATING, *roles)
    assert [part if isinstance(part, int) else part[0] for part in found] == parts


def test_an_order_of_roles_is_mended_beside_a_system_message_that_the_template_knows() -> None:
    knowing = "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]" + (
        "{% set messages = messages[1:] %}{% endif %}" + ALTERNATING
    )
    found = skeleton(knowing, "system", "assistant", "user")
    texts = [part if isinstance(part, int) else part[0] for part in found]
    assert texts == ["[", 0, "]", "<s>", "<e>", 1, "<s>", 2, "<e>"]


def test_a_system_text_that_is_left_out_goes_into_the_first_user_message() -> None:
    deaf = "{% for m in messages if m.role != 'system' %}<s>{{ m.content }}<e>{% endfor %}"
    assert skeleton(deaf, "system", "user") == [
        ("<s>", "system"), 0, ("\n\n", "system"), 1, ("<e>", "suffix"),
    ]  # fmt: skip


def test_a_message_that_is_repeated_is_refused() -> None:
    with pytest.raises(TemplateRejected, match="leaves out or repeats"):
        skeleton("{{ messages[0].content }}{{ messages[0].content }}", "user")


def test_a_template_that_changes_texts_is_refused() -> None:
    with pytest.raises(TemplateRewritesText):
        skeleton("[{{ messages[0].content | replace('\n', '-') }}]", "user")


def test_a_control_token_that_swallows_blanks_is_refused() -> None:
    greedy = ControlToken(3, "<mask>", strip_left=True)
    with pytest.raises(TemplateRewritesText, match="<mask>"):
        skeleton("{{ messages[0].content }} <mask>", "user", control=(greedy,))


def test_templates_run_in_a_sandbox() -> None:
    escaping = "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}"
    with pytest.raises(TemplateRejected):
        skeleton(escaping, "user")


def test_templates_use_loop_controls_json_and_the_fixed_clock() -> None:
    template = (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
        "{{ {'é': 1} | tojson }} {{ strftime_now('%Y') }} {{ messages[0].content }}"
    )
    assert skeleton(template, "user") == [('{"é": 1} 2024 ', "header"), 0]
