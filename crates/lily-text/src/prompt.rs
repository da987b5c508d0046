//! A conversation to a prompt: put in order, rendered by the template, encoded, and measured.
//!
//! Start with [`Renderer::render`]. Templates of this family insist on one system message at the top and on at least
//! one question; clients do not, so [`in_order`] merges system messages, and rendering tries again with an
//! empty question before it gives up.

use serde_json::{Map, Value, json};

use crate::TextError;
use crate::chat::{ChatOptions, Message, Prompt, Role, Tool, ToolCall};
use crate::encoder::Encoder;
use crate::markup::{Guard, unmark};
use crate::replay::Replay;
use crate::template::Template;
use crate::vocabulary::SpecialIds;

/// What rendering needs of a checkpoint.
pub(crate) struct Renderer<'a> {
    pub template: &'a Template,
    pub guard: &'a Guard,
    pub encoder: &'a Encoder,
    pub replay: &'a Replay,
    pub special: &'a SpecialIds,
}

impl Renderer<'_> {
    pub fn render(&self, messages: &[Message], tools: &[Tool], options: &ChatOptions) -> Result<Prompt, TextError> {
        let messages = in_order(messages);
        let marked = match self.render_marked(&messages, tools, options) {
            Err(TextError::Template(_)) if lacks_question(&messages) => {
                self.render_marked(&with_empty_question(messages), tools, options)?
            }
            rendered => rendered?,
        };
        let tokens = self.replay.encode(&marked, self.encoder)?;
        Ok(Prompt {
            in_thinking: in_thinking(&tokens, self.special),
            boundaries: boundaries(&tokens, self.special.im_start),
            text: unmark(&marked),
            tokens,
        })
    }

    /// The rendered text, still with the guard's marks in it.
    fn render_marked(&self, messages: &[Message], tools: &[Tool], options: &ChatOptions) -> Result<String, TextError> {
        let mut context = options.extra.clone();
        context.insert("enable_thinking".into(), options.thinking.into());
        context.insert("preserve_thinking".into(), options.preserve_thinking.into());
        context.insert("add_generation_prompt".into(), options.generation_prompt.into());
        context.insert("messages".into(), messages.iter().map(|message| self.message(message)).collect());
        if !tools.is_empty() {
            context.insert("tools".into(), tools.iter().map(|tool| self.guard.json(&tool.source)).collect());
        }
        self.template.render(&Value::Object(context))
    }

    fn message(&self, message: &Message) -> Value {
        let (role, content) = match message.role {
            Role::System => ("system", self.guard.text(&message.content)),
            Role::User => ("user", self.guard.text(&message.content)),
            Role::Assistant => ("assistant", self.guard.text(&message.content)),
            Role::Tool => ("tool", self.guard.foreign_text(&message.content)),
        };
        let mut fields = Map::new();
        fields.insert("role".into(), role.into());
        fields.insert("content".into(), content.into());
        if let Some(reasoning) = &message.reasoning {
            fields.insert("reasoning_content".into(), self.guard.text(reasoning).into());
        }
        if !message.tool_calls.is_empty() {
            fields.insert("tool_calls".into(), message.tool_calls.iter().map(|call| self.tool_call(call)).collect());
        }
        if let Some(id) = &message.tool_call_id {
            fields.insert("tool_call_id".into(), self.guard.text(id).into());
        }
        Value::Object(fields)
    }

    fn tool_call(&self, call: &ToolCall) -> Value {
        json!({
            "id": self.guard.text(&call.id),
            "type": "function",
            "function": { "name": self.guard.text(&call.name), "arguments": self.guard.json_map(&call.arguments) },
        })
    }
}

/// Merges all system messages, in their order, into one at the top: each is used, once, and the model sees
/// the only shape it was trained on.
fn in_order(messages: &[Message]) -> Vec<Message> {
    let parts: Vec<&str> = messages.iter().filter(|m| m.role == Role::System).map(|m| m.content.trim()).filter(|t| !t.is_empty()).collect();
    let has_system = messages.iter().any(|m| m.role == Role::System);
    let system = has_system.then(|| Message::new(Role::System, parts.join("\n\n")));
    system.into_iter().chain(messages.iter().filter(|m| m.role != Role::System).cloned()).collect()
}

/// A user turn that only wraps a tool's answer asks nothing.
fn lacks_question(messages: &[Message]) -> bool {
    !messages.iter().filter(|m| m.role == Role::User).any(|m| {
        let text = m.content.trim();
        !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
    })
}

/// The conversation with an empty question before everything but the system message.
fn with_empty_question(mut messages: Vec<Message>) -> Vec<Message> {
    let place = usize::from(messages.first().is_some_and(|m| m.role == Role::System));
    messages.insert(place, Message::new(Role::User, ""));
    messages
}

/// Every turn begins with the start marker, so each but the first is the end of the turn before; the last is
/// where the generation prefix begins.
fn boundaries(tokens: &[u32], im_start: u32) -> Vec<usize> {
    tokens.iter().enumerate().skip(1).filter(|(_, token)| **token == im_start).map(|(position, _)| position).collect()
}

/// Whether the last turn ends inside a think block.
fn in_thinking(tokens: &[u32], special: &SpecialIds) -> bool {
    let last_tag = tokens
        .iter()
        .rev()
        .take_while(|token| **token != special.im_start)
        .find(|token| Some(**token) == special.think || Some(**token) == special.think_end);
    last_tag.is_some() && last_tag.copied() == special.think
}
