"""Writes a GGUF file of Qwen3.6-35B-A3B's shapes with random weights, for llama.cpp: 19.7 GB, or fewer layers.

    python tools/peers/synthetic_gguf.py OUT.gguf [--layers 40]

Large matrices are Q4_K, the head Q6_K, as in llama.cpp's own mixed files; the router and the vectors stay f32. There is no
tokenizer: benchmarks feed numbers. Needs the packages `numpy` and `gguf`. Tensor data is streamed, never held whole.
"""

import argparse
import pathlib
import zlib
from collections.abc import Callable

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType

HIDDEN, VOCAB, EXPERTS, CHOSEN, EXPERT_WIDTH = 2048, 248_320, 256, 8, 512
HEADS_Q, HEADS_KV, HEAD_DIM, ROTARY_DIM = 16, 2, 256, 64
HEADS_K, HEADS_V, DELTA_DIM, CONV_WIDTH = 16, 32, 128, 4
KEYS, VALUES = HEADS_K * DELTA_DIM, HEADS_V * DELTA_DIM
# Standard deviation of a weight, of a 4-bit code and of a 6-bit one.
WEIGHT_STD, CODE4_STD, CODE6_STD = 0.02, 4.61, 18.5
# So many different block headers are drawn; blocks share them.
HEADERS = 1 << 15
PIECE_BYTES = 64 << 20

Random = Callable[[np.random.Generator, int], np.ndarray]
NORMAL: Random = lambda rng, count: WEIGHT_STD * rng.standard_normal(count)
GAIN: Random = lambda rng, count: 1 + 0.1 * rng.standard_normal(count)
TAPS: Random = lambda rng, count: 0.4 * rng.standard_normal(count)
TIME: Random = lambda rng, count: rng.uniform(-6, 1, count)
DECAY: Random = lambda rng, count: -rng.uniform(0.05, 16, count)


def tensors(layers: int) -> list[tuple[str, list[int], Kind, Random | None]]:
    """Name, shape with the inputs last, type, and how an f32 tensor's values are drawn."""
    found: list[tuple[str, list[int], Kind, Random | None]] = []

    def matrix(name: str, *shape: int, kind: Kind = Kind.Q4_K) -> None:
        found.append((f"{name}.weight", list(shape), kind, None))

    def vector(name: str, *shape: int, values: Random) -> None:
        found.append((name, list(shape), Kind.F32, values))

    matrix("token_embd", VOCAB, HIDDEN)
    for layer in range(layers):
        at = f"blk.{layer}."
        vector(f"{at}attn_norm.weight", HIDDEN, values=GAIN)
        vector(f"{at}post_attention_norm.weight", HIDDEN, values=GAIN)
        if layer % 4 == 3:
            matrix(f"{at}attn_q", 2 * HEADS_Q * HEAD_DIM, HIDDEN)
            matrix(f"{at}attn_k", HEADS_KV * HEAD_DIM, HIDDEN)
            matrix(f"{at}attn_v", HEADS_KV * HEAD_DIM, HIDDEN)
            matrix(f"{at}attn_output", HIDDEN, HEADS_Q * HEAD_DIM)
            vector(f"{at}attn_q_norm.weight", HEAD_DIM, values=GAIN)
            vector(f"{at}attn_k_norm.weight", HEAD_DIM, values=GAIN)
        else:
            matrix(f"{at}attn_qkv", 2 * KEYS + VALUES, HIDDEN)
            matrix(f"{at}attn_gate", VALUES, HIDDEN)
            vector(f"{at}ssm_conv1d.weight", 2 * KEYS + VALUES, CONV_WIDTH, values=TAPS)
            vector(f"{at}ssm_dt.bias", HEADS_V, values=TIME)
            vector(f"{at}ssm_a", HEADS_V, values=DECAY)
            matrix(f"{at}ssm_beta", HEADS_V, HIDDEN)
            matrix(f"{at}ssm_alpha", HEADS_V, HIDDEN)
            vector(f"{at}ssm_norm.weight", DELTA_DIM, values=GAIN)
            matrix(f"{at}ssm_out", HIDDEN, VALUES)
        vector(f"{at}ffn_gate_inp.weight", EXPERTS, HIDDEN, values=NORMAL)
        matrix(f"{at}ffn_gate_exps", EXPERTS, EXPERT_WIDTH, HIDDEN)
        matrix(f"{at}ffn_up_exps", EXPERTS, EXPERT_WIDTH, HIDDEN)
        matrix(f"{at}ffn_down_exps", EXPERTS, HIDDEN, EXPERT_WIDTH)
        vector(f"{at}ffn_gate_inp_shexp.weight", HIDDEN, values=NORMAL)
        matrix(f"{at}ffn_gate_shexp", EXPERT_WIDTH, HIDDEN)
        matrix(f"{at}ffn_up_shexp", EXPERT_WIDTH, HIDDEN)
        matrix(f"{at}ffn_down_shexp", HIDDEN, EXPERT_WIDTH)
    vector("output_norm.weight", HIDDEN, values=GAIN)
    matrix("output", VOCAB, HIDDEN, kind=Kind.Q6_K)
    return found


def halves(values: np.ndarray) -> np.ndarray:
    """f16 values as bytes, `[values, 2]`."""
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def headers(kind: Kind, rng: np.random.Generator) -> np.ndarray:
    """What stands beside the codes of a block, `[HEADERS, bytes]`: scales that give weights of mean 0 and WEIGHT_STD."""
    size = rng.uniform(0.7, 1.3, HEADERS)
    if kind == Kind.Q6_K:  # w = d * scale * (code - 32): sixteen signed scales, then d
        scales = rng.integers(40, 100, (HEADERS, 16)) * rng.choice([-1, 1], (HEADERS, 16))
        return np.concatenate([scales.astype(np.int8).view(np.uint8), halves(WEIGHT_STD / CODE6_STD / 70 * size)], axis=1)
    # w = d * scale * code - dmin * min: d, dmin, then eight scales and eight mins of 6 bits in 12 bytes. Equal scales and
    # mins with dmin = 7.5 d are centred.
    d = WEIGHT_STD / CODE4_STD / 41 * size * rng.choice([-1.0, 1.0], HEADERS)
    scales = rng.integers(20, 64, (HEADERS, 8)).astype(np.uint8)
    first, last = scales[:, :4], scales[:, 4:]
    low = first | last >> 4 << 6
    return np.concatenate([halves(d), halves(7.5 * d), low, low, last & 15 | (last & 15) << 4], axis=1)


def write_blocks(out, kind: Kind, count: int, table: np.ndarray, rng: np.random.Generator) -> None:
    """Random codes with headers out of the table; Q6_K has its header at the end of a block, Q4_K at the start."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    while count > 0:
        piece = min(count, PIECE_BYTES // size)
        blocks = rng.integers(0, 1 << 64, -(-piece * size // 8), dtype=np.uint64).view(np.uint8)[: piece * size].reshape(piece, size)
        place = slice(size - table.shape[1], size) if kind == Kind.Q6_K else slice(0, table.shape[1])
        blocks[:, place] = table[rng.integers(0, HEADERS, piece)]
        out.write(blocks)
        count -= piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=40)
    options = parser.parse_args()

    writer = gguf.GGUFWriter(options.out, "qwen35moe")
    writer.add_context_length(262_144)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(options.layers)
    writer.add_head_count(HEADS_Q)
    writer.add_head_count_kv(HEADS_KV)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(ROTARY_DIM)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    writer.add_expert_shared_feed_forward_length(EXPERT_WIDTH)
    writer.add_ssm_conv_kernel(CONV_WIDTH)
    writer.add_ssm_state_size(DELTA_DIM)
    writer.add_ssm_group_count(HEADS_K)
    writer.add_ssm_time_step_rank(HEADS_V)
    writer.add_ssm_inner_size(VALUES)
    writer.add_full_attention_interval(4)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_K_M))

    listed = tensors(options.layers)
    sizes = []
    for name, shape, kind, _ in listed:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        sizes.append(int(np.prod(shape, dtype=np.int64)) // block * size)
        if kind == Kind.F32:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), sizes[-1])
        else:
            stored = gguf.quant_shape_to_byte_shape(shape, kind)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), sizes[-1], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    tables = {kind: headers(kind, np.random.default_rng(1)) for kind in (Kind.Q4_K, Kind.Q6_K)}
    for (name, shape, kind, values), size in zip(listed, sizes, strict=True):
        out.write(bytes(-out.tell() % writer.data_alignment))
        rng = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
        if values is None:
            write_blocks(out, kind, size // gguf.GGML_QUANT_SIZES[kind][1], tables[kind], rng)
        else:
            out.write(values(rng, size // 4).astype(np.float32))
    out.write(bytes(-out.tell() % writer.data_alignment))
    writer.close()
    print(f"{options.out}: {sum(sizes) / 1e9:.2f} GB in {len(listed)} tensors")


if __name__ == "__main__":
    main()
