"""lily-nano in plain PyTorch, for training: the qwen3_5_moe text model with Hugging Face's parameter names.

Start reading at `Layer`. Two things differ in form, not in result, from an inference engine: the delta rule runs over
chunks of 64 tokens with matrix products only (`delta_rule`), and every expert is computed and then weighted (`MoE`),
which is faster than routing at this size.
"""

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64
CHUNKS_PER_SPAN = 16


def rms(x, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """The gain is 1 + weight."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        return (rms(x, self.eps) * (1 + self.weight.float())).type_as(x)


class GatedNorm(nn.Module):
    """Plain gain, then multiplied with silu(gate)."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x, gate):
        return (self.weight * rms(x, self.eps).type_as(x) * F.silu(gate.float())).type_as(x)


def inverse_unit_lower(a):
    """(I + a)^-1 for strictly lower triangular a [..., 64, 64]: products in 16-blocks, then block merges.

    Keep the products in full fp32: in TF32 the result is wrong by percents for similar keys.
    """
    block = 16
    eye = torch.eye(block, device=a.device, dtype=a.dtype)
    power = -torch.stack([a[..., i : i + block, i : i + block] for i in range(0, CHUNK, block)], -3)
    inverse = eye + power
    for _ in range(3):  # (I + X)(I + X^2)(I + X^4)(I + X^8), and X^16 = 0
        power = power @ power
        inverse = inverse + inverse @ power
    blocks, size = list(inverse.unbind(-3)), block
    while size < CHUNK:
        merged = []
        for i in range(0, len(blocks), 2):
            top, bottom, start = blocks[i], blocks[i + 1], i * size
            low = -(bottom @ a[..., start + size : start + 2 * size, start : start + size] @ top)
            merged.append(torch.cat([torch.cat([top, torch.zeros_like(top)], -1), torch.cat([low, bottom], -1)], -2))
        blocks, size = merged, size * 2
    return blocks[0]


def chunk_states(transition, update):
    """The state before each chunk, for S' = transition @ S + update, starting from zero.

    transition [b, h, chunks, k, k], update [b, h, chunks, k, v]. Spans of 16 chunks advance side by side, each from zero
    and carrying its own product of transitions; then the spans are joined. So the number of steps in sequence is
    16 + chunks / 16 instead of chunks.
    """
    b, h, chunks, k, v = update.shape
    span = min(CHUNKS_PER_SPAN, chunks)
    pad = -chunks % span
    if pad:
        transition = F.pad(transition, (0, 0, 0, 0, 0, pad))
        update = F.pad(update, (0, 0, 0, 0, 0, pad))
    spans = (chunks + pad) // span
    transition = transition.reshape(b, h, spans, span, k, k)
    update = update.reshape(b, h, spans, span, k, v)
    start = update.new_zeros(b, h, spans, k, v)
    if spans == 1:
        states = [start]
        for i in range(span - 1):
            states.append(transition[:, :, :, i] @ states[-1] + update[:, :, :, i])
        return torch.stack(states, 3).reshape(b, h, chunks, k, v)
    product = torch.eye(k, device=update.device, dtype=update.dtype).expand(b, h, spans, k, k)
    both = torch.cat([start, product], -1)  # state from zero, product of transitions so far
    update = F.pad(update, (0, k))
    trail = [both]
    for i in range(span):
        trail.append(transition[:, :, :, i] @ trail[-1] + update[:, :, :, i])
    span_state, span_product = trail.pop().split([v, k], -1)
    starts = [start[:, :, 0]]
    for i in range(spans - 1):
        starts.append(span_product[:, :, i] @ starts[-1] + span_state[:, :, i])
    trail = torch.stack(trail, 3)  # [b, h, spans, span, k, v + k]
    states = trail[..., :v] + trail[..., v:] @ torch.stack(starts, 2).unsqueeze(3)
    return states.reshape(b, h, spans * span, k, v)[:, :, :chunks]


def delta_rule(q, k, v, log_decay, beta, with_state=False):
    """Gated delta rule over a whole sequence. q, k [b, t, heads_k, 128]; v [b, t, heads_v, 128]; gates [b, t, heads_v].

    With `with_state`, returns the state after the last token too, [b, heads_v, 128, 128].
    """
    tokens, heads_k, dim_k = q.shape[1:]
    heads_v, dim_v = v.shape[2:]
    q, k, v, log_decay, beta = (x.transpose(1, 2).float() for x in (q, k, v, log_decay, beta))
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * dim_k**-0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    q, k = (x.repeat_interleave(heads_v // heads_k, 1) for x in (q, k))
    pad = -tokens % CHUNK
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        log_decay, beta = (F.pad(x, (0, pad)) for x in (log_decay, beta))
    q, k, v = (x.unflatten(2, (-1, CHUNK)) for x in (q, k, v))  # [b, h, chunks, 64, dim]
    total = log_decay.unflatten(2, (-1, CHUNK)).cumsum(-1)
    beta = beta.unflatten(2, (-1, CHUNK)).unsqueeze(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    keys_t = k.transpose(-1, -2)
    inverse = inverse_unit_lower(((k * beta @ keys_t) * decay).tril(-1))
    grown = total.exp().unsqueeze(-1)
    fresh = inverse @ (v * beta)
    recalled = inverse @ (k * beta * grown)
    carried_t = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    eye = torch.eye(dim_k, device=q.device, dtype=q.dtype)
    transition = total[..., -1].exp()[..., None, None] * eye - carried_t @ recalled
    update = carried_t @ fresh
    states = chunk_states(transition, update)
    written = fresh - recalled @ states
    out = (q * grown) @ states + ((q @ keys_t) * decay) @ written
    out = out.flatten(2, 3)[:, :, :tokens].transpose(1, 2)
    return (out, transition[:, :, -1] @ states[:, :, -1] + update[:, :, -1]) if with_state else out


class GatedDeltaNet(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.key_width = shape.linear_num_key_heads * shape.linear_key_head_dim
        self.value_width = shape.linear_num_value_heads * shape.linear_value_head_dim
        hidden, heads = shape.hidden_size, shape.linear_num_value_heads
        channels = 2 * self.key_width + self.value_width
        self.conv1d = nn.Conv1d(channels, channels, shape.linear_conv_kernel_dim, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0.01, 16).log())
        self.norm = GatedNorm(shape.linear_value_head_dim, shape.rms_norm_eps)
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, self.value_width, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.out_proj = nn.Linear(self.value_width, hidden, bias=False)

    def forward(self, x, rope):
        tokens, taps = x.shape[1], self.shape.linear_conv_kernel_dim
        mixed = self.in_proj_qkv(x)
        kernel = self.conv1d.weight.squeeze(1).to(mixed.dtype)
        padded = F.pad(mixed, (0, 0, taps - 1, 0))
        mixed = F.silu(sum(padded[:, i : i + tokens] * kernel[:, i] for i in range(taps)))
        q, k, v = mixed.split([self.key_width, self.key_width, self.value_width], -1)
        q, k = (part.unflatten(-1, (-1, self.shape.linear_key_head_dim)) for part in (q, k))
        v = v.unflatten(-1, (-1, self.shape.linear_value_head_dim))
        beta = self.in_proj_b(x).sigmoid()
        log_decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            out = delta_rule(q, k, v, log_decay, beta).to(v.dtype)
        gate = self.in_proj_z(x).unflatten(-1, (-1, self.shape.linear_value_head_dim))
        return self.out_proj(self.norm(out, gate).flatten(2))


class Attention(nn.Module):
    """Per head the query projection gives the query, then the output gate."""

    def __init__(self, shape):
        super().__init__()
        self.head_dim = shape.head_dim
        hidden, heads_q, heads_kv = shape.hidden_size, shape.num_attention_heads, shape.num_key_value_heads
        self.q_proj = nn.Linear(hidden, heads_q * self.head_dim * 2, bias=False)
        self.k_proj = nn.Linear(hidden, heads_kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, heads_kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads_q * self.head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)

    def forward(self, x, rope):
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * self.head_dim)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k = (rotate(norm(part).transpose(1, 2), rope).to(v.dtype) for norm, part in ((self.q_norm, q), (self.k_norm, k)))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2) * torch.sigmoid(gate.flatten(2)))


def rotate(x, rope):
    """Rotate the first dimensions of each head, pairs (d, d + half)."""
    cos, sin = rope
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], -1)


class MLP(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape.num_experts, shape.hidden_size))


class Experts(nn.Module):
    """Fused as in raw checkpoints: gate rows first, then up rows."""

    def __init__(self, shape):
        super().__init__()
        experts, hidden, width = shape.num_experts, shape.hidden_size, shape.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))


class MoE(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.gate = Router(shape)
        self.experts = Experts(shape)
        self.shared_expert = MLP(shape.hidden_size, shape.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(shape.hidden_size, 1, bias=False)

    def forward(self, x):
        """Returns the output and the load-balance loss (1 when the experts are used evenly)."""
        experts, width, chosen = self.shape.num_experts, self.shape.moe_intermediate_size, self.shape.num_experts_per_tok
        flat = x.flatten(0, 1)
        with torch.autocast(x.device.type, enabled=False):
            probs = (flat.float() @ self.gate.weight.float().t()).softmax(-1)
        top, ids = probs.topk(chosen, -1)
        share = torch.zeros_like(probs).scatter(-1, ids, top / top.sum(-1, keepdim=True))  # [tokens, experts]
        used = (share > 0).float().mean(0) / chosen
        balance = experts * (used.detach() * probs.mean(0)).sum()
        gate, up = F.linear(flat, self.experts.gate_up_proj.flatten(0, 1)).unflatten(-1, (experts, 2 * width)).chunk(2, -1)
        active = F.silu(gate) * up * share.to(gate.dtype).unsqueeze(-1)
        down = self.experts.down_proj.permute(0, 2, 1).flatten(0, 1).to(active.dtype)
        out = active.flatten(1) @ down + torch.sigmoid(self.shared_expert_gate(flat)) * self.shared_expert(flat)
        return out.view_as(x), balance


class Layer(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        self.attends = shape.is_attention(index)
        if self.attends:
            self.self_attn = Attention(shape)
        else:
            self.linear_attn = GatedDeltaNet(shape)
        self.mlp = MoE(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x, rope):
        mixer = self.self_attn if self.attends else self.linear_attn
        x = x + mixer(self.input_layernorm(x), rope)
        out, balance = self.mlp(self.post_attention_layernorm(x))
        return x + out, balance


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Nano(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        residual_std = 0.02 / (2 * shape.num_hidden_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2 and "conv1d" not in name:
                writes_residual = name.endswith(("out_proj.weight", "o_proj.weight", "down_proj", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual_std if writes_residual else 0.02)

    def rope(self, tokens, device):
        width = int(self.shape.head_dim * self.shape.partial_rotary_factor)
        frequency = 1.0 / self.shape.rope_theta ** (torch.arange(0, width, 2, device=device).float() / width)
        angles = torch.outer(torch.arange(tokens, device=device).float(), frequency)
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def hidden(self, ids, layers=None):
        """Final hidden states [b, t, hidden] and the mean load-balance loss. `layers` may be compiled copies."""
        x = self.model.embed_tokens(ids)
        rope = self.rope(ids.shape[1], ids.device)
        balance = 0.0
        for layer in layers or self.model.layers:
            x, layer_balance = layer(x, rope)
            balance = balance + layer_balance
        return self.model.norm(x), balance / len(self.model.layers)

    def forward(self, ids):
        return self.lm_head(self.hidden(ids)[0])

    def loss(self, ids, targets, layers=None):
        """Mean cross-entropy over targets that are not -100, and the load-balance loss."""
        hidden, balance = self.hidden(ids, layers)
        keep = targets.flatten() != -100
        logits = self.lm_head(hidden.flatten(0, 1)[keep])
        return F.cross_entropy(logits.float(), targets.flatten()[keep]), balance
