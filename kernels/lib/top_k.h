// top_k: the experts of one row, from its router logits.
#pragma once
constant uint EXPERTS_MAX = 1024;

// Lane j gets the j-th choice and its weight, the softmax over the chosen ones: what softmax over all experts, then
// division by the sum of the chosen, comes to. Largest first, the lowest id on ties; a NaN counts as minus infinity.
// `per_token` is at most 32, `experts` at most EXPERTS_MAX.
template <uint EACH>
inline void top_k_of(device const float *logits, uint experts, uint per_token, uint lane, thread uint &id, thread float &weight) {
  float value[EACH], chosen = -INFINITY, top = 0.0f;
  for (uint i = 0; i < EACH; ++i) {
    float logit = i * 32 + lane < experts ? logits[i * 32 + lane] : 0.0f;
    value[i] = logit == logit ? logit : -INFINITY;
  }
  uint taken = 0u;
  id = 0u;
  for (uint choice = 0; choice < per_token; ++choice) {
    float best = -INFINITY;
    uint at = 0xffffffffu;
    for (uint i = 0; i < EACH; ++i) {
      bool free = i * 32 + lane < experts && ((taken >> i) & 1u) == 0u;
      if (free && (at == 0xffffffffu || value[i] > best)) {
        best = value[i];
        at = i * 32 + lane;
      }
    }
    float largest = simd_max(best);
    uint winner = simd_min(best == largest ? at : 0xffffffffu);
    if (winner % 32 == lane) taken |= 1u << (winner / 32);
    if (choice == lane) {
      id = winner;
      chosen = largest;
    }
    if (choice == 0) top = largest;
  }
  float power = lane < per_token ? exp(chosen - top) : 0.0f;
  if (top == -INFINITY) power = lane < per_token ? 1.0f : 0.0f;
  weight = power / simd_sum(power);
}

inline void top_k(device const float *logits, uint experts, uint per_token, uint lane, thread uint &id, thread float &weight) {
  if (experts <= 256) top_k_of<8>(logits, experts, per_token, lane, id, weight);
  else top_k_of<EXPERTS_MAX / 32>(logits, experts, per_token, lane, id, weight);
}
