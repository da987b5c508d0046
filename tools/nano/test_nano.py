"""Tests of the training code that need no GPU: `python -m pytest tools/nano/test_nano.py` from the project's root.

They need torch and tokenizers; the comparisons with jinja2 and mlx are skipped where those are missing.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from nano import chat, evaluate, export, model, quantise, stories, tasks, toolcalls  # noqa: E402
from nano.config import Shape  # noqa: E402

TINY = Shape(hidden_size=64, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)


def delta_rule_by_token(q, k, v, log_decay, beta):
    q, k, v, log_decay, beta = (x.double() for x in (q, k, v, log_decay, beta))
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    state = torch.zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1]).double()
    out = []
    for t in range(v.shape[1]):
        state = state * log_decay[:, t].exp()[..., None, None]
        recalled = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        written = (v[:, t] - recalled) * beta[:, t].unsqueeze(-1)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], written)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1)


@pytest.mark.parametrize("tokens", [1, 70, 1024, 1100, 2200])
def test_delta_rule_equals_the_recurrence(tokens):
    torch.manual_seed(tokens)
    q, k = torch.randn(2, 1, tokens, 2, 32)
    v = torch.randn(1, tokens, 4, 32)
    k = k + 2  # similar keys are the hard case of the block inverse
    log_decay = -torch.rand(1, tokens, 4) * torch.tensor([0.001, 0.05, 0.5, 3.0])
    beta = torch.rand(1, tokens, 4)
    expected = delta_rule_by_token(q, k, v, log_decay, beta)
    got = model.delta_rule(q, k, v, log_decay, beta)
    assert (got - expected).norm() / expected.norm() < 2e-5


def test_conversations_equal_the_chat_template():
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((ROOT / "models/lily-nano/chat_template.jinja").read_text())
    source = random.Random(4)
    for _ in range(50):
        tools, tool, values, question = toolcalls.tool_prompt(source)
        messages = [chat.system("Be brief.")] * source.randrange(2) + [chat.user("Hi"), chat.assistant("Hello!", "dropped")]
        messages += toolcalls.round_trip(source, tool, [values, toolcalls.fill(source, ["Ada", "Bo"], ["Rome", "Oslo"])], question)
        schemas = [each.schema for each in tools] if source.random() < 0.8 else None
        rendered = template.render(messages=messages, tools=schemas, add_generation_prompt=False)
        assert chat.conversation(messages, True, schemas).text == rendered
        prompt = template.render(messages=messages[:-1], tools=schemas, add_generation_prompt=True, enable_thinking=True)
        untrained = chat.conversation(messages, True, schemas).segments[:-2]
        assert "".join(text for text, _ in untrained) == prompt


def test_thinking_off_makes_the_empty_block_part_of_the_prompt():
    segments = chat.conversation([chat.user("Hi"), chat.assistant("Hello!", "a thought")], False).segments
    assert segments[0] == ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False)
    assert segments[1] == ("Hello!<|im_end|>", True)


def test_column_methods_give_the_result():
    for x, y in [(37, 48), (99, 1), (5, 7), (640, 360), (0, 0)]:
        digits = [line.split("rite ")[1][0] for line in tasks.column_addition(x, y).splitlines()]
        assert int("".join(reversed(digits))) == x + y
        high, low = max(x, y), min(x, y)
        digits = [line.split("write ")[1][0] for line in tasks.column_subtraction(high, low).splitlines()]
        assert int("".join(reversed(digits))) == high - low


def test_stories_fill_every_field_and_state_what_is_asked():
    source = random.Random(2)
    for _ in range(500):
        text = stories.write_story(source).text
        assert not set("{}[]|") & set(text), text


def test_held_out_things_stay_out_of_training():
    sums = [json.loads(line)["question"] for line in (ROOT / "tests/data/nano/sums.jsonl").read_text().splitlines()]
    source = random.Random(9)
    pairs = [tasks.pick_pair(source) for _ in range(20000)]
    asked = {f"What is {x} + {y}?" for x, y in pairs}
    assert sums and not asked & set(sums)
    assert not set(toolcalls.HELD_OUT_DOMAINS) & set(toolcalls.DOMAINS)


def test_quantised_model_computes_with_what_the_file_holds():
    torch.manual_seed(0)
    nano = model.Nano(TINY)
    tensors = export.mlx_tensors(nano)
    name = "model.layers.0.linear_attn.in_proj_qkv"
    words = tensors[f"language_model.{name}.weight"].view(torch.int32).to(torch.int64)
    q = torch.stack([(words >> (4 * i)) & 15 for i in range(8)], -1).flatten(-2).unflatten(-1, (-1, 64)).float()
    scale, bias = (tensors[f"language_model.{name}.{part}"].float() for part in ("scales", "biases"))
    before = nano.state_dict()[f"{name}.weight"].clone()
    with quantise.Quantised(nano):
        assert torch.equal(nano.state_dict()[f"{name}.weight"], quantise.dequantise(q, scale, bias))
    assert torch.equal(nano.state_dict()[f"{name}.weight"], before)
    assert 0 < (before - quantise.dequantise(q, scale, bias)).norm() / before.norm() < 0.15


def test_mlx_reads_the_same_weights():
    mx = pytest.importorskip("mlx.core")
    torch.manual_seed(1)
    for bits in (4, 8):
        weight = torch.randn(32, 256) * 0.05
        q, scale, bias = quantise.quantise(weight, bits)
        words = mx.array(export.pack_words(q, bits).view(torch.int32).numpy()).view(mx.uint32)
        read = mx.dequantize(words, mx.array(scale.numpy()), mx.array(bias.numpy()), group_size=64, bits=bits)
        assert torch.allclose(torch.tensor(read.tolist()), quantise.dequantise(q, scale, bias), atol=1e-6)


def test_rehearsal_runs_every_kind_of_step_and_resumes(tmp_path, capsys):
    from nano import train

    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("web", "wordnet", "factbook"):
        (texts / f"{name}.txt").write_text("house (noun): a place to live in, with walls and a roof.\n" * 2000)
    (texts / "countries.json").write_text(json.dumps([["France", "Paris", "Europe"], ["Italy", "Rome", "Europe"], ["Peru", "Lima", "South America"]]))
    args = argparse.Namespace(
        texts=texts, tokenizer=ROOT / "models/lily-nano/tokenizer.json", out=tmp_path / "out", minutes=0.01, steps=10, rows=2, length=64, long_length=128,
        rate=1e-3, workers=1, seed=1, device="cpu", compile=False, log_every=1, show_every=1e9, resume=None,
    )  # fmt: skip
    trainer = train.Trainer(args, TINY)
    trainer.rehearse()
    assert "rehearsal at 0.999: long" in capsys.readouterr().out
    step = trainer.step
    args.resume = args.out / "rehearsal.pt"
    resumed = train.Trainer(args, TINY)
    assert resumed.step == step
    resumed.run()
    assert (args.out / "final.pt").exists()


def test_greedy_generation_equals_the_full_forward_pass():
    torch.manual_seed(3)
    nano = model.Nano(TINY).eval()
    backend = evaluate.TorchBackend(nano, "cpu")
    prompts = [[5, 6, 7], list(range(100, 180)), [9]]
    answers = backend.generate(prompts, 5, {0})
    for prompt, answer in zip(prompts, answers):
        ids = list(prompt)
        for _ in answer:
            with torch.no_grad():
                ids.append(nano(torch.tensor([ids]))[0, -1].argmax().item())
        assert ids[len(prompt) :] == answer
