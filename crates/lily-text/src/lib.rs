//! Text on both sides of the engine: tokenizer, chat rendering, and the parser of what the model says.
//!
//! Start with [`Text`], which a checkpoint's tokenizer files make; [`Text::prompt`] goes in,
//! [`OutputParser`] comes out.

mod chat;
mod output;

pub use chat::{ChatOptions, Message, Prompt, Role, Tool, ToolCall};
pub use output::{OutputEvent, OutputOptions};
