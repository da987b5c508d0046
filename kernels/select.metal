#include "dialect/metal.h"

// The choice of one token for each logit row, as lily_model::select_token defines it: adjusted logits, then the largest,
// or a draw from the `keep` largest. Selections that look at more tokens than that are the host's.

constant uint SLICE = 2048;       // logits of a threadgroup
constant uint KEEP_MAX = 64;
constant uint NO_TOKEN = 0xffffffffu;

// Per row, crates/lily-gpu/src/select.rs writes it.
struct Rule {
  float temperature, top_p, min_p, draw, repetition;
  uint top_k, bias_count, masked;
};
// A token whose logit changes: x = token, y = 1 under the repetition penalty, z = bits of the f32 to add.

struct LargestArgs { uint vocab, parts, keep, bias_max, allowed_words; };

// Better of two candidates: the larger value, the lower token where they are equal. Every lane gets it.
inline void simd_best(thread float &value, thread uint &token) {
  float best = simd_max(token == NO_TOKEN ? -INFINITY : value);
  // Among tokens of minus infinity one without a token must not win.
  uint first = simd_min(token != NO_TOKEN && value == best ? token : NO_TOKEN);
  value = best;
  token = first;
}

// select_largest: the `keep` largest adjusted logits of a slice of the vocabulary, largest first.
// Layout   logits [rows, vocab] f32; rules [rows]; bias [rows, bias_max] uint4; allowed [rows, allowed_words], one bit a token;
//          found [rows, parts, keep] uint2: value bits, token.
// Work     a slice in threadgroup memory, adjusted there; then one round for each token kept. Grid: (parts, rows).
kernel void select_largest(device const float *logits [[buffer(0)]], device const Rule *rules [[buffer(1)]],
                           device const uint4 *bias [[buffer(2)]], device const uint *allowed [[buffer(3)]],
                           device uint2 *found [[buffer(4)]], constant LargestArgs &args [[buffer(5)]],
                           uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float slice[SLICE];
  threadgroup float best_values[32];
  threadgroup uint best_tokens[32];
  uint row = group.y, first = group.x * SLICE, count = min(SLICE, args.vocab - first), threads = simdgroups * 32;
  Rule rule = rules[row];
  for (uint i = thread_at; i < count; i += threads) slice[i] = logits[row * args.vocab + first + i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_at; i < rule.bias_count; i += threads) {
    uint4 entry = bias[row * args.bias_max + i];
    if (entry.x >= first && entry.x - first < count) {
      float value = slice[entry.x - first];
      if (entry.y != 0u) value = value > 0.0f ? value / rule.repetition : value * rule.repetition;
      slice[entry.x - first] = value + as_type<float>(entry.z);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint taken = 0u;   // of this thread's at most 32 logits
  for (uint round = 0; round < args.keep; ++round) {
    float value = -INFINITY;
    uint token = NO_TOKEN;
    for (uint i = thread_at, n = 0; i < count; i += threads, ++n) {
      float here = slice[i] == slice[i] ? slice[i] : -INFINITY;
      bool may = ((taken >> n) & 1u) == 0u;
      if (may && rule.masked != 0u) {
        uint word = (first + i) / 32;
        may = word < args.allowed_words && ((allowed[row * args.allowed_words + word] >> ((first + i) % 32)) & 1u) != 0u;
      }
      if (may && (token == NO_TOKEN || here > value)) {
        value = here;
        token = first + i;
      }
    }
    simd_best(value, token);
    if (lane == 0) {
      best_values[simdgroup_at] = value;
      best_tokens[simdgroup_at] = token;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    value = lane < simdgroups ? best_values[lane] : -INFINITY;
    token = lane < simdgroups ? best_tokens[lane] : NO_TOKEN;
    simd_best(value, token);
    if (token != NO_TOKEN && (token - first) % threads == thread_at) taken |= 1u << ((token - first) / threads);
    if (thread_at == 0) found[(row * args.parts + group.x) * args.keep + round] = uint2(as_type<uint>(value), token);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

struct TokenArgs { uint parts, keep, hands_over; };

// select_token: the token of each row, from what the slices found.
// Math     weights = exp((logit - top) / temperature) of the kept; the smallest set of the most probable that reaches
//          top_p, none below min_p times the first; the token where the sum of weights passes draw times their sum
// Layout   chosen [rows] u32; with hands_over the next pass's tokens get it too.
// Work     a threadgroup a row. Numerics f32, where the definition has f64: a draw within 1e-6 of a border may differ.
kernel void select_token(device const uint2 *found [[buffer(0)]], device const Rule *rules [[buffer(1)]],
                         device uint *chosen [[buffer(2)]], device uint *tokens [[buffer(3)]],
                         constant TokenArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float best_values[32];
  threadgroup uint best_tokens[32];
  threadgroup float values[KEEP_MAX];
  threadgroup uint kept_tokens[KEEP_MAX];
  uint row = group.x, threads = simdgroups * 32;
  // Every part's list is sorted: a thread remembers how far it has gone in its parts, up to four of them.
  uint gone[4] = {0, 0, 0, 0};
  for (uint round = 0; round < args.keep; ++round) {
    float value = -INFINITY;
    uint token = NO_TOKEN, from = 0;
    for (uint n = 0; n < 4; ++n) {
      uint part = thread_at + n * threads;
      if (part < args.parts && gone[n] < args.keep) {
        uint2 here = found[(row * args.parts + part) * args.keep + gone[n]];
        float logit = as_type<float>(here.x);
        bool better = here.y != NO_TOKEN && (token == NO_TOKEN || logit > value || (logit == value && here.y < token));
        if (better) {
          value = logit;
          token = here.y;
          from = n;
        }
      }
    }
    uint own = token;
    simd_best(value, token);
    if (lane == 0) {
      best_values[simdgroup_at] = value;
      best_tokens[simdgroup_at] = token;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    value = lane < simdgroups ? best_values[lane] : -INFINITY;
    token = lane < simdgroups ? best_tokens[lane] : NO_TOKEN;
    simd_best(value, token);
    for (uint n = 0; n < 4; ++n)
      if (own == token && own != NO_TOKEN && n == from) gone[n] += 1;
    if (thread_at == 0) {
      values[round] = value;
      kept_tokens[round] = token;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (thread_at == 0) {
    Rule rule = rules[row];
    float top = values[0];
    uint result = kept_tokens[0] == NO_TOKEN ? 0u : kept_tokens[0];
    if (rule.temperature > 0.0f && top > -INFINITY) {
      float weights[KEEP_MAX], total = 0.0f;
      uint count = 0;
      for (uint i = 0; i < min(args.keep, rule.top_k); ++i) {
        weights[i] = 0.0f;
        if (kept_tokens[i] != NO_TOKEN && values[i] > -INFINITY) {
          weights[i] = values[i] == top ? 1.0f : exp((values[i] - top) / rule.temperature);
          total += weights[i];
          count = i + 1;
        }
      }
      uint kept = 0;
      float kept_weight = 0.0f;
      bool open = true;
      for (uint i = 0; i < count; ++i) {
        bool truncates = rule.top_p < 1.0f || rule.min_p > 0.0f;
        if (truncates && i > 0 && (kept_weight >= rule.top_p * total || weights[i] < rule.min_p)) open = false;
        if (open) {
          kept = i + 1;
          kept_weight += weights[i];
        }
      }
      float point = rule.draw * kept_weight, passed = 0.0f;
      bool searching = true;
      for (uint i = 0; i < kept; ++i) {
        if (searching && weights[i] > 0.0f) {
          result = kept_tokens[i];
          passed += weights[i];
          if (point < passed) searching = false;
        }
      }
    }
    chosen[row] = result;
    if (args.hands_over != 0u) tokens[row] = result;
  }
}
