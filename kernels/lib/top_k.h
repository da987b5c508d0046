// top_k: the experts of one row, from its router logits.
#pragma once
constant uint EXPERTS_MAX = 1024;

// A logit as a number that grows with it; a NaN counts as minus infinity. 0 is less than all of them.
inline uint logit_key(float logit) {
  uint bits = as_type<uint>(logit == logit ? logit : -INFINITY);
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
inline float key_logit(uint key) { return as_type<float>((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key); }

// What a lane of the simdgroup has chosen so far, and the largest key of all.
struct TopKChoice {
  uint id;
  uint key;
  uint top;
};

// One round: the largest of the lanes' best keys, the lowest id on ties, becomes choice `choice`. Returns its id.
inline uint top_k_round(thread TopKChoice &mine, uint choice, uint best, uint at, uint lane) {
  uint largest = simd_max(best), winner = simd_min(best == largest ? at : 0xffffffffu);
  if (choice == lane) {
    mine.id = winner;
    mine.key = largest;
  }
  if (choice == 0) mine.top = largest;
  return winner;
}

// Lane j gets the j-th choice. Largest first, the lowest id on ties; a NaN counts as minus infinity. `per_token` is at most
// 32, `experts` at most 32 * EACH, a power of two. The simdgroup compares whole numbers, which some devices do in one
// instruction.
template <uint EACH>
inline TopKChoice top_k_of(device const float *logits, uint experts, uint per_token, uint lane) {
  uint key[EACH];
  for (uint i = 0; i < EACH; ++i) {
    uint at = i * 32 + lane;
    float logit = logits[min(at, experts - 1)];
    key[i] = at < experts ? logit_key(logit) : 0u;
  }
  TopKChoice mine = {0u, 0u, 0u};
  for (uint choice = 0; choice < per_token; ++choice) {
    // The lane's largest by a tree in which the left side wins ties: its ids are lower.
    uint best[EACH], at[EACH];
    for (uint i = 0; i < EACH; ++i) {
      best[i] = key[i];
      at[i] = i;
    }
    for (uint step = 1; step < EACH; step *= 2)
      for (uint i = 0; i < EACH; i += 2 * step) {
        bool right = best[i + step] > best[i];
        best[i] = right ? best[i + step] : best[i];
        at[i] = right ? at[i + step] : at[i];
      }
    uint winner = top_k_round(mine, choice, best[0], at[0] * 32 + lane, lane);
    for (uint i = 0; i < EACH; ++i)
      if (winner - lane == i * 32) key[i] = 0u;
  }
  return mine;
}

// The same for any number of experts, without keeping them.
inline TopKChoice top_k_many(device const float *logits, uint experts, uint per_token, uint lane) {
  uint taken = 0u;
  TopKChoice mine = {0u, 0u, 0u};
  for (uint choice = 0; choice < per_token; ++choice) {
    uint best = 0u, at = 0xffffffffu;
    for (uint i = 0; i * 32 + lane < experts; ++i) {
      uint key = (taken >> i & 1u) == 0u ? logit_key(logits[i * 32 + lane]) : 0u;
      if (key > best) {
        best = key;
        at = i * 32 + lane;
      }
    }
    uint winner = top_k_round(mine, choice, best, at, lane);
    if (winner % 32 == lane) taken |= 1u << (winner / 32);
  }
  return mine;
}

// Lane j gets the j-th choice and its weight, the softmax over the chosen ones: what softmax over all experts, then
// division by the sum of the chosen, comes to.
inline void top_k(device const float *logits, uint experts, uint per_token, uint lane, thread uint &id, thread float &weight) {
  TopKChoice mine;
  if (experts <= 256) mine = top_k_of<8>(logits, experts, per_token, lane);
  else mine = top_k_many(logits, experts, per_token, lane);
  float highest = key_logit(mine.top);
  float power = lane < per_token ? exp(key_logit(mine.key) - highest) : 0.0f;
  if (highest == -INFINITY) power = lane < per_token ? 1.0f : 0.0f;
  id = mine.id;
  weight = power / simd_sum(power);
}
