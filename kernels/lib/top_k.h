// top_k: the experts of one row, from its router logits.
#pragma once
constant uint EXPERTS_MAX = 1024;

// A logit as a number that grows with it; a NaN counts as minus infinity. 0 is less than all of them.
inline uint logit_key(float logit) {
  uint bits = as_type<uint>(logit == logit ? logit : -INFINITY);
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// The ids of a row's `per_token` largest logits, largest first, the lowest id on ties; lane j gets the j-th. A NaN counts as
// minus infinity. `per_token` is at most 32.
inline uint top_k_exact(device const float *logits, uint experts, uint per_token, uint lane) {
  uint taken = 0u, mine = 0u;
  for (uint choice = 0; choice < per_token; ++choice) {
    uint best = 0u, at = 0xffffffffu;
    for (uint i = 0; i * 32 + lane < experts; ++i) {
      uint key = (taken >> i & 1u) == 0u ? logit_key(logits[i * 32 + lane]) : 0u;
      if (key > best) {
        best = key;
        at = i * 32 + lane;
      }
    }
    uint largest = simd_max(best), winner = simd_min(best == largest ? at : 0xffffffffu);
    if (choice == lane) mine = winner;
    if (winner % 32 == lane) taken |= 1u << (winner / 32);
  }
  return mine;
}

constant uint FEW_EXPERTS = 256;

// The same for up to FEW_EXPERTS experts. A round compares 24 bits of the logits with their ids below, so that the largest
// of the simdgroup, one instruction on some devices, is the winner too. Where 24 bits do not tell, which is rare, the
// logits are compared again in full.
inline uint top_k_few(device const float *logits, uint experts, uint per_token, uint lane) {
  constexpr uint EACH = FEW_EXPERTS / 32;
  uint key[EACH], mine = 0u, last = 0u;
  for (uint i = 0; i < EACH; ++i) {
    uint at = i * 32 + lane;
    float logit = logits[min(at, experts - 1)];
    key[i] = at < experts ? (logit_key(logit) & 0xffffff00u) | (255u - at) : 0u;
  }
  bool unsure = false;
  for (uint choice = 0; choice < per_token; ++choice) {
    uint best[EACH];
    for (uint i = 0; i < EACH; ++i) best[i] = key[i];
    for (uint step = 1; step < EACH; step *= 2)
      for (uint i = 0; i < EACH; i += 2 * step) best[i] = max(best[i], best[i + step]);
    uint largest = simd_max(best[0]);
    for (uint i = 0; i < EACH; ++i)
      if (key[i] == largest) key[i] = 0u;
    if (choice == lane) mine = largest;
    unsure = unsure || last >> 8 == largest >> 8;
    last = largest;
  }
  for (uint i = 0; i < EACH; ++i) unsure = unsure || key[i] >> 8 == last >> 8;
  if (simd_max(unsure ? 1u : 0u) != 0u) return top_k_exact(logits, experts, per_token, lane);
  return 255u - (mine & 255u);
}

inline uint top_k_ids(device const float *logits, uint experts, uint per_token, uint lane) {
  if (experts <= FEW_EXPERTS) return top_k_few(logits, experts, per_token, lane);
  return top_k_exact(logits, experts, per_token, lane);
}

// The weight of the choice of lane j, whose id is `id`: the softmax over the chosen ones, which is what softmax over all
// experts, then division by the sum of the chosen, comes to.
inline float top_k_weight(device const float *logits, uint id, uint per_token, uint lane) {
  float logit = lane < per_token ? logits[id] : -INFINITY;
  if (logit != logit) logit = -INFINITY;
  float highest = simd_shuffle(logit, 0);
  float power = lane < per_token ? exp(logit - highest) : 0.0f;
  if (highest == -INFINITY) power = lane < per_token ? 1.0f : 0.0f;
  return power / simd_sum(power);
}
