//! A conversation, as the chat template sees it.

use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// One message, already freed of any API's spelling.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: Role,
    pub content: String,
    /// An assistant's thinking, without the tags.
    pub reasoning: Option<String>,
    /// An assistant's tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// A tool message: the call that it answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message that is only text.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), reasoning: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// A mapping where the client's string parsed as one; broken strings become an empty mapping.
    pub arguments: Map<String, Value>,
}

/// A function that the model may call; `parameters` is its JSON schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    pub parameters: Option<Value>,
    /// The tool as the client sent it: what the template prints.
    pub source: Value,
}

impl Tool {
    /// Whether the client wants its calls held to the schema wherever the model makes one.
    pub fn is_strict(&self) -> bool {
        self.source.pointer("/function/strict") == Some(&Value::Bool(true))
    }
}

/// Switches of the chat format.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    pub thinking: bool,
    /// Keep the thinking of older assistant turns.
    pub preserve_thinking: bool,
    /// End with the assistant's header, ready to generate; off only for tests and boundaries.
    pub generation_prompt: bool,
    /// Further `chat_template_kwargs`, handed through.
    pub extra: Map<String, Value>,
}

/// A rendered prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub text: String,
    pub tokens: Vec<u32>,
    /// Whether the model starts inside a think block: the state that the output parser begins in.
    pub in_thinking: bool,
    /// Token positions of message boundaries before the generation prefix, ascending: where the state is worth keeping.
    pub boundaries: Vec<usize>,
}

impl Message {
    pub fn system(content: impl Into<String>) -> Self {
        Self::plain(Role::System, content)
    }

    pub fn user(content: impl Into<String>) -> Self {
        Self::plain(Role::User, content)
    }

    pub fn assistant(content: impl Into<String>) -> Self {
        Self::plain(Role::Assistant, content)
    }

    fn plain(role: Role, content: impl Into<String>) -> Self {
        Message { role, content: content.into(), reasoning: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

impl Default for ChatOptions {
    /// Thinking on, ready to generate.
    fn default() -> Self {
        ChatOptions { thinking: true, preserve_thinking: false, generation_prompt: true, extra: Map::new() }
    }
}
