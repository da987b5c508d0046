"""Token-by-token generation with the training model: recurrent states and key-value caches, many prompts at a time.

Start reading at `Decoding`. Prompts of different lengths are padded on the left; a padded position writes nothing into the
states and no query sees it, so each row gives what it would give alone.
"""

import torch
import torch.nn.functional as F

from .model import delta_rule, rotate


class DeltaCache:
    """The last raw rows before the convolution, and the state [rows, heads_v, 128, 128]."""

    def __init__(self, mixer):
        self.mixer, self.rows, self.state = mixer, None, None

    def inputs(self, x, keep):
        """The mixer's parts for new positions x [b, t, hidden]; `keep` [b, t] is 0 at padding."""
        mixer, shape = self.mixer, self.mixer.shape
        tokens, taps = x.shape[1], shape.linear_conv_kernel_dim
        mixed = mixer.in_proj_qkv(x) * keep.unsqueeze(-1)
        if self.rows is None:
            self.rows = mixed.new_zeros(mixed.shape[0], taps - 1, mixed.shape[2])
        padded = torch.cat([self.rows, mixed], 1)
        self.rows = padded[:, 1 - taps :]
        kernel = mixer.conv1d.weight.squeeze(1)
        mixed = F.silu(sum(padded[:, i : i + tokens] * kernel[:, i] for i in range(taps)))
        q, k, v = mixed.split([mixer.key_width, mixer.key_width, mixer.value_width], -1)
        q, k = (part.unflatten(-1, (-1, shape.linear_key_head_dim)) for part in (q, k))
        beta = mixer.in_proj_b(x).sigmoid() * keep.unsqueeze(-1)
        log_decay = -mixer.A_log.exp() * F.softplus(mixer.in_proj_a(x) + mixer.dt_bias) * keep.unsqueeze(-1)
        return q, k, v.unflatten(-1, (-1, shape.linear_value_head_dim)), log_decay, beta

    def forward(self, x, rope, keep):
        q, k, v, log_decay, beta = self.inputs(x, keep)
        if self.state is None:
            out, self.state = delta_rule(q, k, v, log_decay, beta, with_state=True)
        else:
            out = self.advance(q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], beta[:, 0]).unsqueeze(1)
        gate = self.mixer.in_proj_z(x).unflatten(-1, (-1, out.shape[-1]))
        return self.mixer.out_proj(self.mixer.norm(out, gate).flatten(2))

    def advance(self, q, k, v, log_decay, beta):
        """One token; q, k [b, heads_k, 128], v [b, heads_v, 128], gates [b, heads_v]."""
        unit = lambda part: part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6)  # noqa: E731
        q, k = (unit(part).repeat_interleave(v.shape[1] // part.shape[1], 1) for part in (q, k))
        self.state = self.state * log_decay.exp()[..., None, None]
        recalled = (k.unsqueeze(-2) @ self.state).squeeze(-2)
        written = (v - recalled) * beta.unsqueeze(-1)
        self.state = self.state + k.unsqueeze(-1) * written.unsqueeze(-2)
        return (q.unsqueeze(-2) @ self.state).squeeze(-2) * q.shape[-1] ** -0.5


class AttentionCache:
    """Keys and values of all positions so far."""

    def __init__(self, mixer):
        self.mixer, self.keys, self.values, self.seen = mixer, None, None, None

    def forward(self, x, rope, keep):
        mixer = self.mixer
        q, gate = mixer.q_proj(x).unflatten(-1, (-1, 2 * mixer.head_dim)).chunk(2, -1)
        k = mixer.k_proj(x).unflatten(-1, (-1, mixer.head_dim))
        v = mixer.v_proj(x).unflatten(-1, (-1, mixer.head_dim)).transpose(1, 2)
        q, k = (rotate(norm(part).transpose(1, 2), rope) for norm, part in ((mixer.q_norm, q), (mixer.k_norm, k)))
        first = self.keys is None
        self.keys = k if first else torch.cat([self.keys, k], 2)
        self.values = v if first else torch.cat([self.values, v], 2)
        self.seen = keep.bool() if first else torch.cat([self.seen, keep.bool()], 1)
        mask = self.seen[:, None, None, :]
        if first:
            tokens = x.shape[1]
            mask = mask & torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
            mask = mask | torch.eye(tokens, dtype=torch.bool, device=x.device)  # padding sees itself, which keeps it finite
        group = q.shape[1] // self.keys.shape[1]
        keys, values = (part.repeat_interleave(group, 1) for part in (self.keys, self.values))
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return mixer.o_proj(out.transpose(1, 2).flatten(2) * torch.sigmoid(gate.flatten(2)))


class Decoding:
    """A running generation over a batch of prompts."""

    def __init__(self, model):
        self.model, self.position = model, 0
        self.caches = [AttentionCache(layer.self_attn) if layer.attends else DeltaCache(layer.linear_attn) for layer in model.model.layers]

    def logits(self, ids, keep):
        """Feed ids [b, t]; the logits after the last position."""
        cos, sin = self.model.rope(self.position + ids.shape[1], ids.device)
        rope = cos[self.position :], sin[self.position :]
        self.position += ids.shape[1]
        x = self.model.model.embed_tokens(ids)
        for layer, cache in zip(self.model.model.layers, self.caches):
            x = x + cache.forward(layer.input_layernorm(x), rope, keep)
            x = x + layer.mlp(layer.post_attention_layernorm(x))[0]
        return self.model.lm_head(self.model.model.norm(x[:, -1]))


@torch.no_grad()
def greedy(model, prompts, new_tokens, stops, device):
    """Greedy answers to a batch of token lists, each up to and including its stop token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    keep = torch.tensor([[0.0] * (width - len(prompt)) + [1.0] * len(prompt) for prompt in prompts], device=device)
    decoding = Decoding(model)
    answers = [[] for _ in prompts]
    for _ in range(new_tokens):
        ids = decoding.logits(ids, keep).argmax(-1, keepdim=True)
        keep = torch.ones_like(ids, dtype=torch.float32)
        for answer, token in zip(answers, ids[:, 0].tolist()):
            if not answer or answer[-1] not in stops:
                answer.append(token)
        if all(answer[-1] in stops for answer in answers):
            break
    return answers
