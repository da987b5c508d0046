//! What the model says, as events: reasoning, content, tool calls. One incremental parser makes them, for
//! streams and whole answers; the whole answer is the folded stream ([`Answer`]).

/// How to read the output.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// The prompt ended inside a think block.
    pub in_thinking: bool,
    /// The request's tools: their schemas convert argument values. Empty: tool-call markup is content.
    pub tools: Vec<crate::Tool>,
    /// Texts that end the answer; a match is never part of it. Searched in content only: thinking and
    /// arguments may contain them.
    pub stop: Vec<String>,
}

/// One piece of the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputEvent {
    /// Thinking, without its tags.
    Reasoning(String),
    Content(String),
    /// A tool call begins; `index` counts the answer's calls.
    ToolCallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// Part of the call's arguments; the parts concatenate to one JSON object.
    ToolCallArguments {
        index: usize,
        json: String,
    },
    /// A stop text matched: nothing follows; cancel the generation.
    StopMatched {
        stop: String,
    },
}

/// A whole answer: its events, folded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Empty when the model did not think.
    pub reasoning: String,
    pub content: String,
    pub tool_calls: Vec<AnswerCall>,
    /// The stop text that ended it.
    pub stop: Option<String>,
}

/// A tool call of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerCall {
    pub id: String,
    pub name: String,
    /// One JSON object, as text.
    pub arguments: String,
}

impl Answer {
    /// Adds the next event of the stream.
    pub fn apply(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Reasoning(text) => self.reasoning.push_str(&text),
            OutputEvent::Content(text) => self.content.push_str(&text),
            OutputEvent::ToolCallStart { id, name, .. } => self.tool_calls.push(AnswerCall { id, name, arguments: String::new() }),
            OutputEvent::ToolCallArguments { index, json } => {
                if let Some(call) = self.tool_calls.get_mut(index) {
                    call.arguments.push_str(&json);
                }
            }
            OutputEvent::StopMatched { stop } => self.stop = Some(stop),
        }
    }
}

impl Extend<OutputEvent> for Answer {
    fn extend<I: IntoIterator<Item = OutputEvent>>(&mut self, events: I) {
        events.into_iter().for_each(|event| self.apply(event));
    }
}

impl FromIterator<OutputEvent> for Answer {
    fn from_iter<I: IntoIterator<Item = OutputEvent>>(events: I) -> Answer {
        let mut answer = Answer::default();
        answer.extend(events);
        answer
    }
}
