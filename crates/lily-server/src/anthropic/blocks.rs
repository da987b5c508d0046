//! An answer as content blocks: thinking, text and tool use, each begun, continued and ended in turn.

use serde_json::{Value, json};

use crate::generate::Piece;

/// What happens to the list of blocks.
#[derive(Debug, PartialEq)]
pub(super) enum BlockEvent {
    /// The block as it begins, empty.
    Start {
        index: usize,
        block: Value,
    },
    /// `delta` as the stream sends it.
    Delta {
        index: usize,
        delta: Value,
    },
    Stop {
        index: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    /// The call's place among the calls.
    ToolUse(usize),
}

/// Turns pieces into block events.
#[derive(Default)]
pub(super) struct Blocks {
    count: usize,
    open: Option<Kind>,
}

impl Blocks {
    /// Nothing for [`Piece::Finished`]: see [`Blocks::end`].
    pub fn piece(&mut self, piece: &Piece) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        match piece {
            Piece::Reasoning(text) => {
                self.switch(Kind::Thinking, json!({"type": "thinking", "thinking": "", "signature": ""}), &mut events);
                self.delta(json!({"type": "thinking_delta", "thinking": text}), &mut events);
            }
            Piece::Content { text, .. } => {
                self.switch(Kind::Text, json!({"type": "text", "text": ""}), &mut events);
                self.delta(json!({"type": "text_delta", "text": text}), &mut events);
            }
            Piece::ToolCallStart { index, id, name } => {
                self.switch(Kind::ToolUse(*index), json!({"type": "tool_use", "id": id, "name": name, "input": {}}), &mut events);
            }
            Piece::ToolCallArguments { json, .. } => self.delta(json!({"type": "input_json_delta", "partial_json": json}), &mut events),
            Piece::Finished { .. } => {}
        }
        events
    }

    /// Ends the open block.
    pub fn end(&mut self) -> Option<BlockEvent> {
        self.open.take().map(|_| BlockEvent::Stop { index: self.count - 1 })
    }

    fn switch(&mut self, kind: Kind, block: Value, events: &mut Vec<BlockEvent>) {
        if self.open == Some(kind) {
            return;
        }
        events.extend(self.end());
        self.open = Some(kind);
        events.push(BlockEvent::Start { index: self.count, block });
        self.count += 1;
    }

    fn delta(&self, delta: Value, events: &mut Vec<BlockEvent>) {
        events.push(BlockEvent::Delta { index: self.count - 1, delta });
    }
}

/// Blocks folded from their events: the content of a whole answer.
#[derive(Default)]
pub(super) struct Folded {
    blocks: Vec<Value>,
    /// Arguments of the open call, as text.
    input: String,
}

impl Folded {
    pub fn apply(&mut self, event: BlockEvent) {
        match event {
            BlockEvent::Start { block, .. } => {
                self.input.clear();
                self.blocks.push(block);
            }
            BlockEvent::Delta { index, delta } => {
                for name in ["text", "thinking"] {
                    if let (Some(more), Some(Value::String(text))) = (delta[name].as_str(), self.blocks[index].get_mut(name)) {
                        text.push_str(more);
                    }
                }
                self.input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            BlockEvent::Stop { index } => {
                // Cut off in the middle, arguments are no JSON: the client sees an empty input, and why it ended.
                if self.blocks[index]["type"] == "tool_use" {
                    self.blocks[index]["input"] = serde_json::from_str(&self.input).unwrap_or_else(|_| json!({}));
                }
            }
        }
    }

    pub fn content(self) -> Vec<Value> {
        self.blocks
    }
}
