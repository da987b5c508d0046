//! Think and tool tags inside a byte stream.
//!
//! A tag is a token id, not a spelling. While the parser looks ahead, text and tags must stand in one buffer
//! and stay apart; bytes that UTF-8 never uses stand for the tags.

use crate::vocabulary::SpecialIds;

pub(crate) const THINK: u8 = 0xF8;
pub(crate) const THINK_END: u8 = 0xF9;
pub(crate) const CALL: u8 = 0xFA;
pub(crate) const CALL_END: u8 = 0xFB;

/// The tag that a token is, if it is one.
pub(crate) fn tag_of(token: u32, special: &SpecialIds) -> Option<u8> {
    let tags = [(special.think, THINK), (special.think_end, THINK_END), (special.tool_call, CALL), (special.tool_call_end, CALL_END)];
    tags.into_iter().find(|(id, _)| *id == Some(token)).map(|(_, tag)| tag)
}

pub(crate) fn is_tag(byte: u8) -> bool {
    byte >= THINK
}

fn spelling(tag: u8) -> &'static str {
    match tag {
        THINK => "<think>",
        THINK_END => "</think>",
        CALL => "<tool_call>",
        _ => "</tool_call>",
    }
}

/// The buffer as a reader would see it, tags spelled out. Text must be whole characters.
pub(crate) fn spelled(buffer: &[u8]) -> String {
    let mut text = String::with_capacity(buffer.len());
    let mut rest = buffer;
    while !rest.is_empty() {
        let run = rest.iter().position(|byte| is_tag(*byte)).unwrap_or(rest.len());
        text.push_str(&String::from_utf8_lossy(&rest[..run]));
        if let Some(tag) = rest.get(run) {
            text.push_str(spelling(*tag));
        }
        rest = rest.get(run + 1..).unwrap_or_default();
    }
    text
}
