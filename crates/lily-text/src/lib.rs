//! Text on both sides of the engine: tokenizer, chat rendering, and the parser of what the model says.
//!
//! Start with [`Text`], which a checkpoint's tokenizer files make; [`Text::prompt`] goes in,
//! [`OutputParser`] comes out.

mod arguments;
mod bare_call;
mod chat;
mod closing;
mod constraint;
mod cut;
mod defaults;
mod detokenizer;
mod encoder;
mod error;
mod grammar;
mod markup;
mod output;
mod parser;
mod prompt;
mod python;
mod python_literal;
mod replay;
mod schema;
mod stop;
mod tags;
mod template;
mod text;
mod tool_call;
mod utf8;
mod vocabulary;
mod whole_call;
mod writers;

pub use chat::{ChatOptions, Message, Prompt, Role, Tool, ToolCall};
pub use constraint::{ConstraintOptions, OutputConstraint};
pub use defaults::SamplingDefaults;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use grammar::Grammar;
pub use output::{Answer, AnswerCall, OutputEvent, OutputOptions};
pub use parser::OutputParser;
pub use text::Text;
pub use vocabulary::SpecialIds;
