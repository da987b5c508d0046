// pass: what the host stages for every pass (crates/lily-gpu/src/pass.rs writes it).
//
// rows[i]: x = state slot, y = position in the sequence, z = where the span's page table starts in `pages`, w = first row
// of the span in the pass. spans[i]: x = first row, y = rows, z = state slot, w = position of the first token.
#pragma once
constant uint PAGE_TOKENS = 256;

// Keys of one head in one page; its values follow PAGE_TOKENS * head_dim later. Pages are contiguous over all layers.
inline ulong page_keys(uint page, uint layer, uint layers, uint head, uint heads_kv, uint head_dim) {
  return ((ulong(page) * layers + layer) * heads_kv + head) * (2 * PAGE_TOKENS * head_dim);
}
