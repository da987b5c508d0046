//! An answer as output items: reasoning, message, function call, each begun, continued and ended in turn.

use serde_json::{Value, json};

use crate::generate::Piece;
use crate::service::App;

/// An event of the stream without its sequence number: its type and its fields.
pub(super) type ItemEvent = (&'static str, Value);

/// The item that is being written.
struct Open {
    kind: Kind,
    id: String,
    /// Text, thinking or arguments so far.
    text: String,
    /// Of a call.
    call: Option<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

/// Turns pieces into events, and keeps the finished items: a whole answer is what the stream left here.
pub(super) struct Items {
    app: App,
    open: Option<Open>,
    pub done: Vec<Value>,
}

impl Items {
    pub fn new(app: &App) -> Self {
        Items { app: app.clone(), open: None, done: Vec::new() }
    }

    /// Nothing for [`Piece::Finished`]: see [`Items::end`].
    pub fn piece(&mut self, piece: &Piece) -> Vec<ItemEvent> {
        let mut events = Vec::new();
        match piece {
            Piece::Reasoning(text) => {
                self.switch(Kind::Reasoning, None, &mut events);
                self.delta("response.reasoning_text.delta", text, &mut events);
            }
            Piece::Content { text, .. } => {
                self.switch(Kind::Message, None, &mut events);
                self.delta("response.output_text.delta", text, &mut events);
            }
            Piece::ToolCallStart { id, name, .. } => self.switch(Kind::Call, Some((id.clone(), name.clone())), &mut events),
            Piece::ToolCallArguments { json, .. } => self.delta("response.function_call_arguments.delta", json, &mut events),
            Piece::Finished { .. } => {}
        }
        events
    }

    /// Ends the open item; `complete` unless the answer was cut off inside it.
    pub fn end(&mut self, complete: bool) -> Vec<ItemEvent> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let index = self.done.len();
        let status = if complete { "completed" } else { "incomplete" };
        let item = open.item(status);
        let Open { id, text, .. } = &open;
        let mut events = match open.kind {
            Kind::Reasoning => {
                vec![("response.reasoning_text.done", json!({"item_id": id, "output_index": index, "content_index": 0, "text": text}))]
            }
            Kind::Message => vec![
                (
                    "response.output_text.done",
                    json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []}),
                ),
                ("response.content_part.done", json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part(text)})),
            ],
            Kind::Call => vec![(
                "response.function_call_arguments.done",
                json!({"item_id": id, "output_index": index, "name": item["name"], "arguments": text}),
            )],
        };
        events.push(("response.output_item.done", json!({"output_index": index, "item": item})));
        self.done.push(item);
        events
    }

    /// Goes on with the open item of this kind, or ends it and begins one. A call always begins.
    fn switch(&mut self, kind: Kind, call: Option<(String, String)>, events: &mut Vec<ItemEvent>) {
        if kind != Kind::Call && self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        events.extend(self.end(true));
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call => "fc_",
        };
        let open = Open { kind, id: self.app.new_id(prefix), text: String::new(), call };
        let index = self.done.len();
        events.push(("response.output_item.added", json!({"output_index": index, "item": open.item("in_progress")})));
        if kind == Kind::Message {
            let part = json!({"item_id": open.id, "output_index": index, "content_index": 0, "part": text_part("")});
            events.push(("response.content_part.added", part));
        }
        self.open = Some(open);
    }

    fn delta(&mut self, name: &'static str, delta: &str, events: &mut Vec<ItemEvent>) {
        let index = self.done.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(delta);
        let mut event = json!({"item_id": open.id, "output_index": index, "delta": delta});
        if open.kind != Kind::Call {
            event["content_index"] = json!(0);
        }
        if open.kind == Kind::Message {
            event["logprobs"] = json!([]);
        }
        events.push((name, event));
    }
}

impl Open {
    fn item(&self, status: &str) -> Value {
        let Open { id, text, .. } = self;
        let begun = status != "in_progress";
        match self.kind {
            Kind::Reasoning => {
                let content = if begun { json!([{"type": "reasoning_text", "text": text}]) } else { json!([]) };
                json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content})
            }
            Kind::Message => {
                let content = if begun { json!([text_part(text)]) } else { json!([]) };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Kind::Call => {
                let (call_id, name) = self.call.as_ref().map_or(("", ""), |(id, name)| (id, name));
                json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": text})
            }
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
