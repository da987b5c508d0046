//! Text on both sides of the engine: tokenizer, chat rendering, and the parser of what the model says.
//!
//! Start with [`Text`], which a checkpoint's tokenizer files make; [`Text::prompt`] goes in,
//! [`OutputParser`] comes out.

mod chat;
mod defaults;
mod detokenizer;
mod encoder;
mod error;
mod markup;
mod output;
mod parser;
mod prompt;
mod python;
mod stop;
mod template;
mod text;
mod utf8;
mod vocabulary;
mod writers;

pub use chat::{ChatOptions, Message, Prompt, Role, Tool, ToolCall};
pub use defaults::SamplingDefaults;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use output::{Answer, AnswerCall, OutputEvent, OutputOptions};
pub use parser::OutputParser;
pub use text::Text;
pub use vocabulary::SpecialIds;
