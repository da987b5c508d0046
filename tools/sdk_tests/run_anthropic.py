"""The anthropic SDK against a running `lily serve`: message, stream, thinking, tool use, counting, errors.

    lily serve --port 8080 &
    python tools/sdk_tests/run_anthropic.py --url http://127.0.0.1:8080

Needs the package `anthropic` and sets up nothing itself. Start reading at `CHECKS`.
"""

import sys

import checks

try:
    import anthropic
except ImportError:
    sys.exit("missing: the Python package `anthropic` (pip install anthropic)")

MODEL = "lily"
# Newer versions of the package have no `temperature` of their own.
GREEDY = {"temperature": 0}
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather for a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def answers_and_streams_the_same(client):
    request = dict(model=MODEL, messages=STORY, max_tokens=48, extra_body=GREEDY)
    whole = client.messages.create(**request)
    assert whole.content[0].type == "text" and whole.content[0].text
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens > 0
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason


def thinks_in_its_own_block(client):
    request = dict(model=MODEL, max_tokens=400, extra_body=GREEDY, thinking={"type": "enabled", "budget_tokens": 1024})
    message = client.messages.create(messages=[{"role": "user", "content": "What is 17 + 25?"}], **request)
    assert message.content[0].type == "thinking" and message.content[0].thinking


def stops_before_the_stop_text(client):
    whole = client.messages.create(model=MODEL, messages=STORY, max_tokens=48, extra_body=GREEDY).content[0].text
    stop = " ".join(whole.split()[2:4])
    assert stop in whole, whole
    cut = client.messages.create(model=MODEL, messages=STORY, max_tokens=48, extra_body=GREEDY, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == whole[: whole.index(stop)]


def uses_a_tool_and_reads_its_result(client):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    request = dict(model=MODEL, max_tokens=200, extra_body=GREEDY, tools=[WEATHER])
    # The call is forced, so that any model makes one.
    with client.messages.stream(messages=question, tool_choice={"type": "tool", "name": "get_weather"}, **request) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use", message.stop_reason
    use = next(block for block in message.content if block.type == "tool_use")
    assert use.name == "get_weather" and isinstance(use.input["city"], str), use
    result = {"type": "tool_result", "tool_use_id": use.id, "content": '{"temperature": 21}'}
    history = [*question, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(messages=history, **request)
    assert after.stop_reason in ("end_turn", "max_tokens", "tool_use")


def counts_tokens(client):
    short = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "hi"}]).input_tokens
    long = client.messages.count_tokens(model=MODEL, messages=STORY, system="Be brief.").input_tokens
    assert 0 < short < long


def refuses_with_the_right_class(client):
    try:
        client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "banana", "content": "x"}])
    except anthropic.BadRequestError as error:
        assert "banana" in str(error)
    else:
        raise AssertionError("an unknown role was accepted")


CHECKS = [
    answers_and_streams_the_same,
    thinks_in_its_own_block,
    stops_before_the_stop_text,
    uses_a_tool_and_reads_its_result,
    counts_tokens,
    refuses_with_the_right_class,
]


def main():
    flags = checks.arguments(__doc__)
    client = anthropic.Anthropic(base_url=flags.url, api_key=flags.api_key, max_retries=0, timeout=120)
    checks.run(CHECKS, flags.only, client)


if __name__ == "__main__":
    main()
