"""Conversations as training samples: text cut exactly where an engine cuts it between prompt and completion.

Start reading at `conversation`. The rendering repeats models/lily-nano/chat_template.jinja in Python because a template
engine is too slow for a training stream; `test_nano.py` checks that both give the same text.
"""

import json
from dataclasses import dataclass, field

TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>"""


@dataclass
class Sample:
    """A training text in segments; the loss counts only tokens of segments with `trained`. Segments are tokenised apart."""

    segments: list = field(default_factory=list)  # (text, trained)

    def add(self, text, trained):
        if text:
            self.segments.append((text, trained))

    @property
    def text(self):
        return "".join(text for text, _ in self.segments)


def document(text):
    """A plain text to be continued, all of it trained."""
    return Sample([(text + "<|endoftext|>", True)])


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, thought="", tool_calls=None):
    return {"role": "assistant", "content": content, "reasoning_content": thought, "tool_calls": tool_calls or []}


def tool_result(content):
    return {"role": "tool", "content": content}


def render_value(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def render_calls(content, calls):
    parts = []
    for call in calls:
        arguments = "".join(f"<parameter={name}>\n{render_value(value)}\n</parameter>\n" for name, value in call["arguments"].items())
        parts.append(f"<tool_call>\n<function={call['name']}>\n{arguments}</function>\n</tool_call>")
    return "\n\n".join(part for part in (content, "\n".join(parts)) if part)


def conversation(messages, thinking, tools=None):
    """Render a conversation; every assistant turn after the last question is trained, in the given thinking mode.

    With thinking on, the generation prompt ends in `<think>\\n` and the completion begins with the thought; with thinking
    off, the empty think block belongs to the prompt. Earlier assistant turns appear without thoughts, as in the template.
    """
    sample = Sample()
    question = max(index for index, message in enumerate(messages) if message["role"] == "user")
    first = messages[0]["content"] if messages[0]["role"] == "system" else None
    if tools:
        block = TOOLS_HEAD + "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools) + TOOLS_TAIL
        first = block + ("\n\n" + first if first else "")
    prompt = f"<|im_start|>system\n{first}<|im_end|>\n" if first is not None else ""
    for index, message in enumerate(messages):
        content = message["content"].strip()
        if message["role"] == "user":
            prompt += f"<|im_start|>user\n{content}<|im_end|>\n"
        elif message["role"] == "tool":
            prompt += "<|im_start|>user" if messages[index - 1]["role"] != "tool" else ""
            prompt += f"\n<tool_response>\n{content}\n</tool_response>"
            last = index + 1 == len(messages) or messages[index + 1]["role"] != "tool"
            prompt += "<|im_end|>\n" if last else ""
        elif message["role"] == "assistant":
            answer = render_calls(content, message["tool_calls"]) + "<|im_end|>"
            prompt += "<|im_start|>assistant\n"
            if index < question:
                prompt += answer + "\n"
                continue
            thought = message["reasoning_content"].strip()
            if thinking and not thought:
                raise ValueError("a trained turn with thinking on needs a thought")
            sample.add(prompt + ("<think>\n" if thinking else "<think>\n\n</think>\n\n"), False)
            sample.add(f"{thought}\n</think>\n\n{answer}" if thinking else answer, True)
            prompt = "\n"
    sample.add(prompt, False)
    return sample
