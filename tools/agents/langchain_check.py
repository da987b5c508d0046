"""LangChain against a running Lily: an answer, a stream, a tool call that is forced, a structured answer.

    lily serve --port 8080
    python tools/agents/langchain_check.py http://127.0.0.1:8080/v1

Needs the package langchain-openai. What is tested is the protocol: the bundled model is a toy.
"""

import sys

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def read_file(path: str) -> str:
    """Reads a file."""
    return f"contents of {path}"


class Sum(BaseModel):
    total: int


def main() -> int:
    model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="lily-nano", temperature=0, max_tokens=200)
    question = [SystemMessage("You are a helpful assistant."), HumanMessage("What is 37 + 48?")]

    answer = model.invoke(question)
    print("invoke     ", repr(answer.content), answer.usage_metadata["output_tokens"], "tokens")
    assert "85" in answer.content

    parts = [chunk.content for chunk in model.stream(question)]
    print("stream     ", repr("".join(parts)), "in", len(parts), "chunks")
    assert "".join(parts) == answer.content

    forced = model.bind_tools([read_file], tool_choice="read_file")
    history = [HumanMessage("Read the file notes.txt.")]
    call = forced.invoke(history)
    print("tool call  ", call.tool_calls)
    assert call.tool_calls[0]["name"] == "read_file" and set(call.tool_calls[0]["args"]) == {"path"}

    history += [call, ToolMessage(read_file.invoke(call.tool_calls[0]["args"]), tool_call_id=call.tool_calls[0]["id"])]
    after = model.bind_tools([read_file]).invoke(history)
    print("tool result", repr(after.content), [one["name"] for one in after.tool_calls])

    structured = model.with_structured_output(Sum, method="json_schema").invoke(question)
    print("structured ", structured)
    assert isinstance(structured, Sum)
    print("all passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
