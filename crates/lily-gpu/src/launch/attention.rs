//! `attention.metal`, `attention_flash.metal`; of `cuda/`: `attention_decode_mma.metal`, `attention_flash_mma.metal`,
//! `attention_flash_wgmma.metal`.

use crate::launch::launcher;

launcher!(AttnPrepare = "attn_prepare" [
    Write projected, Read rows, Read pages, Read q_gain, Read k_gain, Read page_turns, Read turns, Write kv,
] {
    layer: u32, layers: u32, heads_q: u32, heads_kv: u32, head_dim: u32, rotary_dim: u32, stride: u32, eps: f32,
});

launcher!(AttnDecode = "attn_decode" | "attn_decode_mma" [Read projected, Read rows, Read pages, Read kv, Write parts] {
    layer: u32, layers: u32, heads_q: u32, heads_kv: u32, stride: u32, splits: u32, block_tokens: u32, scale: f32,
});

launcher!(AttnCombine = "attn_combine" [Read parts, Read projected, Read rows, Write mixed] {
    heads_q: u32, head_dim: u32, splits: u32, block_tokens: u32, stride: u32, mixed_stride: u32, halves: u32,
});

launcher!(AttnFlash = "attn_flash" | "attn_flash_mma" | "attn_flash_wgmma" [Read projected, Read tiles, Read pages, Read kv, Write mixed] {
    layer: u32, layers: u32, heads_q: u32, heads_kv: u32, stride: u32, mixed_stride: u32, scale: f32,
});
