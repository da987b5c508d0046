//! What the model says, as events: reasoning, content, tool calls. One incremental parser for streams and
//! whole answers; the whole answer is the folded stream.

/// How to read the output.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// The prompt ended inside a think block.
    pub in_thinking: bool,
    /// The request's tools: their schemas convert argument values. Empty: tool-call markup is content.
    pub tools: Vec<crate::Tool>,
    /// Texts that end the answer; a match is never part of it.
    pub stop: Vec<String>,
}

/// One piece of the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputEvent {
    /// Thinking, without its tags.
    Reasoning(String),
    Content(String),
    /// A tool call begins; `index` counts the answer's calls.
    ToolCallStart { index: usize, id: String, name: String },
    /// Part of the call's arguments; the parts concatenate to one JSON object.
    ToolCallArguments { index: usize, json: String },
    /// A stop text matched: nothing follows; cancel the generation.
    StopMatched { stop: String },
}
