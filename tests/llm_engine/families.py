"""Our tokenizer of a family beside transformers' one, for tests that compare the two."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_engine.chat import ChatMessage, ChatTemplate
from llm_engine.prompt import Segment
from llm_engine.tokenizer import Tokenizer

FAMILIES = ("smollm2", "qwen3", "llama3_1", "llama2")

# Llama 2's own template, as its repository has it; the package with its vocabulary has none.
LLAMA2_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
# Mistral 7B Instruct v0.1's, on the same vocabulary: it knows no system role.
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)


@dataclass(frozen=True, repr=False)  # a vocabulary's repr fills a test's report
class Family:
    name: str
    tokenizer: Tokenizer
    chat: ChatTemplate
    twin: Any  # transformers' tokenizer

    def reference_ids(self, system: str, history: Sequence[ChatMessage], user: str) -> list[int]:
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": message.role, "content": message.text} for message in history]
        messages.append({"role": "user", "content": user})
        ids: list[int] = self.twin.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
        return ids


def ids_of(segments: Sequence[Segment]) -> list[int]:
    return [token for segment in segments for token in segment.token_ids]


def folder_with_template(source: Path, target: Path, template: str) -> Path:
    """A copy of a tokenizer's folder with another chat template."""
    for file in source.glob("tokenizer*.json"):
        shutil.copy(file, target / file.name)
    (target / "chat_template.jinja").write_text(template, "utf-8")
    return target


def load_family(
    name: str, smollm2_path: Path, tokenizer_dir: Callable[[str], Path], scratch: Path
) -> Family:
    path = smollm2_path if name == "smollm2" else tokenizer_dir(name)
    if name == "llama2":
        path = folder_with_template(path, scratch, LLAMA2_TEMPLATE)
    tokenizer = Tokenizer(path)
    return Family(name, tokenizer, ChatTemplate(tokenizer), load_twin(path))


def load_twin(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries' own doing
        from transformers import AutoTokenizer

        if path.is_dir():
            return AutoTokenizer.from_pretrained(path)
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
