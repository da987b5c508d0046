//! `select.metal`.

use crate::launch::launcher;

launcher!(SelectLargest = "select_largest" [Read logits, Read rules, Read bias, Read allowed, Write found] {
    vocab: u32, parts: u32, keep: u32, bias_max: u32, allowed_words: u32,
});

launcher!(SelectToken = "select_token" [Read found, Read rules, Write chosen, Write tokens] {
    parts: u32, keep: u32, hands_over: u32,
});
