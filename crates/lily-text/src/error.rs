//! What can be wrong with a checkpoint's text files, or with a conversation.

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A text file of the checkpoint is not what it should be.
    #[error("{file}: {problem}")]
    File { file: &'static str, problem: String },

    /// The tokenizer belongs to another model.
    #[error("the tokenizer does not match the model: {0}")]
    Mismatch(String),

    /// Chat was asked of a checkpoint that brings no chat template.
    #[error(
        "this checkpoint has no chat template: expected a chat_template.jinja, or `chat_template` in tokenizer_config.json; plain completions work without"
    )]
    NoChatTemplate,

    /// The chat template refused the conversation, or is itself broken.
    #[error("chat template: {0}")]
    Template(String),

    /// A grammar or schema for structured output that cannot be compiled.
    #[error("grammar: {0}")]
    Grammar(String),

    #[error("cannot encode the text: {0}")]
    Encode(String),

    #[error("token {token} does not exist: the vocabulary ends at {vocab}")]
    UnknownToken { token: u32, vocab: usize },
}

impl TextError {
    pub(crate) fn file(file: &'static str, problem: impl ToString) -> TextError {
        TextError::File { file, problem: problem.to_string() }
    }
}
