"""The openai SDK against a running `lily serve`: chat, stream, tool call, stop text, errors.

    lily serve --port 8080 &
    python tools/sdk_tests/run.py --url http://127.0.0.1:8080

Needs the package `openai` and sets up nothing itself. Checks what any model must satisfy, and for the tool
call that the model calls at all, which lily-nano was trained to do. Every check prints one line; the exit
status is 1 if any failed. Start reading at `CHECKS`.
"""

import json
import sys

import checks

try:
    import openai
except ImportError:
    sys.exit("missing: the Python package `openai` (pip install openai)")

STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
NO_THINKING = {"enable_thinking": False}


def lists_its_model(client, model):
    assert model in [each.id for each in client.models.list()]
    assert client.models.retrieve(model).id == model


def answers_whole(client, model):
    answer = client.chat.completions.create(model=model, messages=STORY, max_tokens=48, temperature=0, extra_body=NO_THINKING)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    return choice.message.content


def streams_the_same(client, model):
    whole = answers_whole(client, model)
    stream = client.chat.completions.create(
        model=model, messages=STORY, max_tokens=48, temperature=0, stream=True, stream_options={"include_usage": True}, extra_body=NO_THINKING
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole, f"streamed {text!r}, whole {whole!r}"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices


def thinks_apart(client, model):
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is 17 + 25?"}], max_tokens=400, temperature=0, stream=True
    )
    thoughts, content = "", ""
    for chunk in stream:
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    assert thoughts, "no reasoning_content came"
    assert "<think>" not in thoughts + content and "</think>" not in thoughts + content


def streams_a_tool_call(client, model):
    request = dict(model=model, messages=QUESTION, tools=[WEATHER], temperature=0, max_tokens=200, extra_body=NO_THINKING)
    calls, finish = {}, None
    for chunk in client.chat.completions.create(stream=True, **request):
        finish = chunk.choices[0].finish_reason or finish
        for part in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
            call["arguments"] += part.function.arguments or ""
    assert finish == "tool_calls", f"finish reason {finish}: the model called no tool"
    call = calls[0]
    assert call["id"] and call["name"] == "get_weather", call
    arguments = json.loads(call["arguments"])
    assert isinstance(arguments["city"], str), arguments

    whole = client.chat.completions.create(**request).choices[0].message
    assert [(each.function.name, json.loads(each.function.arguments)) for each in whole.tool_calls] == [("get_weather", arguments)]
    history = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [each.model_dump() for each in whole.tool_calls]},
        {"role": "tool", "tool_call_id": whole.tool_calls[0].id, "content": '{"temperature": 21, "condition": "sunny"}'},
    ]
    after = client.chat.completions.create(model=model, messages=history, tools=[WEATHER], temperature=0, max_tokens=60, extra_body=NO_THINKING)
    assert after.choices[0].finish_reason in ("stop", "length", "tool_calls")


def stops_before_the_stop_text(client, model):
    whole = answers_whole(client, model)
    words = whole.split()
    assert len(words) > 4, f"too short to cut: {whole!r}"
    stop = f"{words[2]} {words[3]}"
    expected = whole[: whole.index(stop)] if stop in whole else None
    assert expected is not None, f"{stop!r} is not in {whole!r}"
    request = dict(model=model, messages=STORY, max_tokens=48, temperature=0, stop=[stop], extra_body=NO_THINKING)
    cut = client.chat.completions.create(**request).choices[0]
    assert (cut.message.content, cut.finish_reason) == (expected, "stop"), f"{cut.message.content!r}, expected {expected!r}"
    chunks = list(client.chat.completions.create(stream=True, **request))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def completes_text(client, model):
    answer = client.completions.create(model=model, prompt="1 2 3 4", max_tokens=8, temperature=0)
    streamed = client.completions.create(model=model, prompt="1 2 3 4", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def gives_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=STORY, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3, extra_body=NO_THINKING
    )
    content = answer.choices[0].logprobs.content
    assert content and all(len(each.top_logprobs) == 3 and each.logprob <= 0 for each in content)
    assert all(each.top_logprobs[0].token == each.token for each in content), "greedy takes the most probable token"


def refuses_with_the_right_class(client, model):
    try:
        client.chat.completions.create(model=model, messages=[{"role": "banana", "content": "x"}])
    except openai.BadRequestError as error:
        assert "banana" in str(error) and error.param == "messages[0].role", error
    else:
        raise AssertionError("an unknown role was accepted")
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("an unknown model was found")


CHECKS = [
    lists_its_model,
    answers_whole,
    streams_the_same,
    thinks_apart,
    streams_a_tool_call,
    stops_before_the_stop_text,
    completes_text,
    gives_logprobs,
    refuses_with_the_right_class,
]


def main():
    flags = checks.arguments(__doc__)
    client = openai.OpenAI(base_url=flags.url.rstrip("/") + "/v1", api_key=flags.api_key, max_retries=0, timeout=120)
    try:
        model = client.models.list().data[0].id
    except openai.APIConnectionError as error:
        sys.exit(f"nothing answers at {flags.url}: {error}")
    checks.run(CHECKS, flags.only, client, model)


if __name__ == "__main__":
    main()
