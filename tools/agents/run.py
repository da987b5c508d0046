"""A real coding agent edits a file through Lily, over each of the three chat protocols.

The agent is Qwen Code from npm. The model behind the server is scripted (the example `scripted` of lily-server), since
the small bundled one cannot edit code: what is tried is everything between, from the agent's long prompt and its tool
schemas to tool calls, tool results and the last word. For each protocol a folder with a spelling mistake is made, the
agent is asked to mend it, and the file must be right afterwards.

    python3 tools/agents/run.py                 # needs node, npm and cargo; installs the agent under target/agents

`output.txt` beside this file is what it printed on 2026-11-29.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENT = "@qwen-code/qwen-code@0.24.4"
PROTOCOLS = ["openai", "openai-responses", "anthropic"]
TASK = "Mend the spelling mistake in greet.py."
BEFORE = 'def greet(name):\n    return f"Helo, {name}!"\n'
AFTER = BEFORE.replace("Helo", "Hello")


def call(name, **arguments):
    """A tool call as the model writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def steps(file):
    """What the model says, by what stands last in the conversation."""
    return [
        {"key": TASK, "answer": f"I look at the file.\n</think>\n\nI read it first.\n\n{call('read_file', file_path=file)}"},
        {
            "key": 'return f"Helo, {name}!"',
            "answer": "One l is missing.\n</think>\n\n"
            + call("edit", file_path=file, old_string='    return f"Helo, {name}!"', new_string='    return f"Hello, {name}!"'),
        },
        {"key": "has been updated", "answer": "It is done.\n</think>\n\nThe greeting now says Hello."},
    ]


def install():
    folder = ROOT / "target/agents"
    program = folder / "node_modules/.bin/qwen"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, AGENT], check=True)
    return program


def serve(script, traces):
    """Starts the scripted server; returns it and its address."""
    program = ROOT / "target/debug/examples/scripted"
    server = subprocess.Popen([program, script, traces], stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


def show(traces):
    """The conversation as the server saw it, one line per answer."""
    for path in sorted(traces.iterdir()):
        trace = json.loads(path.read_text())
        cache = trace["cache"]
        said = trace["output_text"].replace("\n", " ")
        tokens = f"prompt {len(trace['prompt_tokens'])} tokens, cached {cache['cached_tokens']} ({cache['reason']}), {len(trace['tools'])} tools"
        print(f"    {trace['route']}: {tokens}\n        {said[:150]}")


def run(agent, protocol):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        project, home, traces = folder / "project", folder / "home", folder / "traces"
        project.mkdir()
        home.mkdir()
        file = project / "greet.py"
        file.write_text(BEFORE)
        script = folder / "script.json"
        script.write_text(json.dumps(steps(str(file))))
        server, url = serve(script, traces)
        try:
            base = url if protocol == "anthropic" else f"{url}/v1"
            variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": base, "OPENAI_MODEL": "scripted"}
            variables |= {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": base, "ANTHROPIC_MODEL": "scripted"}
            path = os.environ["PATH"]
            command = [agent, "--auth-type", protocol, "--model", "scripted", "--approval-mode", "yolo", TASK]
            environment = {"PATH": path, "HOME": str(home), "CI": "1", **variables}
            agent_run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300)
            print(f"{protocol}: the agent says {agent_run.stdout.strip()!r}")
            if traces.exists():
                show(traces)
            right = file.read_text() == AFTER
            print(f"    {'ok' if right else 'FAILED'}: greet.py is {'mended' if right else repr(file.read_text())}")
            if not right:
                print(agent_run.stderr)
            return right
        finally:
            server.kill()


def main():
    subprocess.run(["cargo", "build", "--quiet", "--package", "lily-server", "--example", "scripted"], cwd=ROOT, check=True)
    agent = install()
    print(AGENT)
    results = [run(agent, protocol) for protocol in sys.argv[1:] or PROTOCOLS]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
