#!/usr/bin/env python3
"""Makes reference/chat.json with Hugging Face's `transformers` (5.24.0 was used): chat templates of models, and the
texts that apply_chat_template() makes of conversations. Run it by hand; the tests read the file only.

    tests/tools/text/make_chat_reference.py [NAME=FOLDER ...]

FOLDER: a Hugging Face folder or a file of GGUF, whose template is compared with the one of that NAME here.
"""
import json
import pathlib
import sys

from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models

HERE = pathlib.Path(__file__).resolve().parent / "reference"

# The field chat_template of tokenizer_config.json of the models.
LOOP = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' \
+ '\\n'}}{% endfor %}"""
CHATML = LOOP + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
FALSE_IF_UNDEFINED = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
SMOLLM2 = CHATML.replace("%}", """%}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n\
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}""", 1)
LLAMA3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + \
message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
QWEN2_5 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided \
with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n\
</tool_call><|im_end|>\\n" }}
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
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TEMPLATES = {
    "smollm": CHATML,
    "smollm2": SMOLLM2,
    "qwen2": SMOLLM2.replace("AI assistant named SmolLM, trained by Hugging Face", "assistant."),
    "qwen2.5": QWEN2_5,
    "qwen2.5-math": QWEN2_5.replace("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
                                    r"Please reason step by step, and put your final answer within \\boxed{}."),
    "chatml": FALSE_IF_UNDEFINED + CHATML,
    "bielik": "{{bos_token}}" + CHATML,
    "llama3": LLAMA3,
    "deephermes": FALSE_IF_UNDEFINED + LLAMA3,
    # Other spellings.
    "lines": """\
{# ChatML, a tag a line #}
{% if messages[0].role == "system" %}
    {% set first = messages[0].content %}
    {% set turns = messages[1:] %}
{% else %}
    {% set first = 'It\\'s "X".' %}
    {% set turns = messages %}
{% endif %}
{{- "<|im_start|>" ~ 'system\\n' ~ first ~ "<|im_end|>" }}
{% for turn in turns %}
<|im_start|>{{ turn.role }}
{{ turn["content"] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
""",
    "pieces": """\
{%- for m in messages -%} {% if m.content is string %}{% set text = m.content %}{% endif %}
  {{- ('<|im_start|>' + m.role) + '\\n' + text + '<|im_end|>' '\\n' -}}
{% endfor -%} \n{%- if true and add_generation_prompt != false %}{{ '<|im_start|>assistant\\n' -}} \n{% endif %}""",
}

# Variants of CHATML: each has to be refused, or to give the same text as in transformers.
VARIANTS = {
    "bos_token": "{{ bos_token }}" + CHATML,
    "strip": CHATML.replace("message['content']", "message['content'].strip()"),
    "trim": CHATML.replace("message['content']", "message['content'] | trim"),
    "no line break": CHATML.replace("'<|im_end|>' + '\\n'", "'<|im_end|>'"),
    "eos_token": CHATML.replace("{% if add", "{{ eos_token }}{% if add"),
    "upper": CHATML.replace("message['role']", "message['role'] | upper"),
    "renamed": CHATML.replace("message['role']", "('human' if message['role']=='user' else message['role'])"),
    "renamed by if": CHATML.replace("{{'", "{% if message.role == 'assistant' %}{% set role = 'model' %}{% else %}{% "
                                    "set role = message.role %}{% endif %}{{'", 1).replace("message['role']", "role"),
    "no system": "{% if messages[0]['role'] == 'system' %}{% set messages = messages[1:] %}{% endif %}" + CHATML,
    "set sys": "{% if messages[0]['role'] != 'system' %}{% set sys = 'You are X.' %}{{'<|im_start|>system\\n' + sys + "
               "'<|im_end|>\\n'}}{% endif %}" + CHATML,
    "text sys": "{% if not messages[0]['role'] == 'system' %}<|im_start|>system\nYou are \"X\"'s.<|im_end|>\n{% "
                "endif %}" + CHATML,
    "text in front": "Below is a chat.\n" + CHATML,
    "raise": "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}" + CHATML,
    "no break in header": CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant'"),
    "date": "{{'<|im_start|>system\\n' + strftime_now('today') + '<|im_end|>\\n'}}" + CHATML,
    "no header": LOOP,
    "always a header": LOOP + "{{ '<|im_start|>assistant\\n' }}",
    "third": CHATML.replace("{{'", "{% if loop.index0 == 2 %}{{ 'third' }}{% endif %}{{'", 1),
    "sixth": CHATML.replace("{{'", "{% if loop.index0 == 5 %}{{ 'sixth' }}{% endif %}{{'", 1),
    "empty": CHATML.replace("{{'", "{% if message.content %}{{'", 1).replace("{% endfor", "{% endif %}{% endfor"),
    "one content": CHATML.replace("{{'", "{% if message.content == 'Why?' %}{{ 'x' }}{% endif %}{{'", 1),
    "breaks": CHATML.replace("{% endfor %}", "\n{% endfor %}\n"),
    "left": "{% for message in messages %}\n  {{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "other name": CHATML.replace("['role']", "['name']"),
    "leak": CHATML.replace("{{'", "{% if loop.first %}{% set x = 'a' %}{% endif %}{{ x }}{{'", 1),
    "raw": "{% raw %}{% if x %}{% endraw %}" + CHATML,
    "llama3 without begin": "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
                            "'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% "
                            "if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
                            "{% endif %}",
    "llama3 without trim": LLAMA3.replace(" | trim", ""),
    "llama3 trims all": LLAMA3.replace("message['content'] |", "('x ' + message['content']) |"),
}

USER, SYSTEM = {"role": "user", "content": "How many layers?"}, {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Twelve.\n\nOf width 768."}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER],
    [SYSTEM, USER, ANSWER, {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It's a choice."}],
    [{"role": "user", "content": " \t\n white \u3000space\u2003 \x1c\n"},
     {"role": "assistant", "content": "\n\n{ok} "}],
    [USER, SYSTEM, ANSWER],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    [ANSWER],
    [{"role": "user", "content": "Größe 损失 🙂 <|im_end|> '\"\\n{{ x }}"}],
    [{"role": role, "content": str(i)} for i, role in enumerate(["user", "assistant"] * 3 + ["system", "user"])],
]


def texts_of(source, tokens):
    """The texts of CONVERSATIONS without and with the header of an answer; null for what transformers refuses."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **tokens)
    tokenizer.chat_template = source
    texts = []
    for messages in CONVERSATIONS:
        try:
            texts.append([tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
                          for answer in (False, True)])
        except Exception:  # of any kind: it is the template's own
            texts.append(None)
    return texts


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
    reference = {"conversations": CONVERSATIONS}
    for group, sources in (("templates", TEMPLATES), ("variants", VARIANTS)):
        reference[group] = {}
        for name, source in sources.items():
            tokens = {"bos_token": "<s>" if name == "bielik" else "<|begin_of_text|>", "eos_token": "</s>"}
            reference[group][name] = {"chat_template": source, **tokens, "texts": texts_of(source, tokens)}
    HERE.joinpath("chat.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
