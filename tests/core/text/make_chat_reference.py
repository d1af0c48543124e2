#!/usr/bin/env python3
"""Makes reference/chat.json with Hugging Face's `transformers` (5.24.0 was used): chat templates of models, and the
texts that apply_chat_template() makes of conversations. Run it by hand; the tests read the file only.

    tests/core/text/make_chat_reference.py [NAME=FOLDER ...]

FOLDER: a Hugging Face folder or a file of GGUF, whose template is compared with the one of that NAME here.
"""
import json
import pathlib
import sys

from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models

HERE = pathlib.Path(__file__).resolve().parent / "reference"

# The field chat_template of tokenizer_config.json of the models; parts for tools are left out of that of Qwen2.5.
TEMPLATES = {
    "smollm2": """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a \
helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + \
message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "qwen2.5": """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" \
and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "chatml": """\
{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + \
'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "llama3": """\
{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + \
message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
}

USER, SYSTEM = {"role": "user", "content": "How many layers?"}, {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Twelve.\n\nOf width 768."}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER],
    [SYSTEM, USER, ANSWER, {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It's a choice."}],
    [{"role": "user", "content": " \t\n white \u3000space\u2003 \x1c\n"}, {"role": "assistant", "content": "\n\n{ok} "}],
    [USER, SYSTEM, ANSWER],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    [ANSWER],
    [{"role": "user", "content": "Größe 损失 🙂 <|im_end|> '\"\\n{{ x }}"}],
]


def template_of(path):
    path = pathlib.Path(path)
    if path.is_file():
        from gguf import GGUFReader
        return GGUFReader(path).get_field("tokenizer.chat_template").contents()
    jinja = path / "chat_template.jinja"
    if jinja.exists():
        return jinja.read_text()
    return json.loads((path / "tokenizer_config.json").read_text())["chat_template"]


def main():
    for argument in sys.argv[1:]:
        name, path = argument.split("=", 1)
        # Within literals of Jinja a line break may also be written as \\n.
        theirs, ours = (text.replace("\\n", "\n") for text in (template_of(path), TEMPLATES[name]))
        print(f"{name}: {'the same as' if theirs == ours else 'DIFFERS from'} that of {path}")
    reference = {}
    for name, source in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<|begin_of_text|>")
        tokenizer.chat_template = source
        cases = []
        for messages in CONVERSATIONS:
            texts = [tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
                     for answer in (False, True)]
            cases.append({"messages": messages, "text": texts[0], "text_with_header": texts[1]})
        reference[name] = {"template": source, "cases": cases}
    HERE.joinpath("chat.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
