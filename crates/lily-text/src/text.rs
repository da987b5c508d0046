//! [`Text`]: everything a checkpoint says about text, loaded once and shared.

use std::sync::{Arc, Mutex, PoisonError};

use tokenizers::Tokenizer;

use crate::TextError;
use crate::chat::{ChatOptions, Message, Prompt, Tool};
use crate::constraint::{ConstraintFactory, ConstraintOptions, OutputConstraint};
use crate::cut::cut;
use crate::defaults::{ConfigFiles, SamplingDefaults};
use crate::detokenizer::Detokenizer;
use crate::encoder::Encoder;
use crate::markup::Guard;
use crate::output::OutputOptions;
use crate::parser::OutputParser;
use crate::prompt::Renderer;
use crate::replay::Replay;
use crate::template::Template;
use crate::vocabulary::{SpecialIds, Vocabulary};

/// The text side of one checkpoint. Cheap to use from many threads; what changes after loading only saves work.
pub struct Text {
    vocabulary: Arc<Vocabulary>,
    encoder: Encoder,
    guard: Guard,
    replay: Replay,
    template: Option<Template>,
    eos: Arc<[u32]>,
    sampling: SamplingDefaults,
    /// Made when it is first needed, or ahead by [`Text::prepare_constraints`]: a large vocabulary takes seconds.
    constraints: Mutex<Option<Arc<ConstraintFactory>>>,
}

impl Text {
    /// Loads the tokenizer and what belongs to it from the bytes of a checkpoint's files.
    ///
    /// `chat_template` is the text of chat_template.jinja; without it the template of `tokenizer_config` is
    /// used. `config_eos` are the end tokens of config.json; `vocab` is the number of the model's embedding rows.
    /// A checkpoint without a template loads: only [`Text::prompt`] fails.
    ///
    /// # Errors
    /// A file that does not parse, a template with a syntax error, or a tokenizer of another model.
    pub fn load(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        generation_config: Option<&[u8]>,
        chat_template: Option<&str>,
        config_eos: &[u32],
        vocab: usize,
    ) -> Result<Text, TextError> {
        let tokenizer = Tokenizer::from_bytes(tokenizer_json).map_err(|error| TextError::file("tokenizer.json", error))?;
        let vocabulary = Vocabulary::new(&tokenizer, vocab)?;
        let files = ConfigFiles::parse(tokenizer_config, generation_config)?;
        let template = match chat_template {
            Some(source) => Some(source),
            None => files.chat_template()?,
        };
        Ok(Text {
            encoder: Encoder::new(tokenizer, &vocabulary)?,
            guard: Guard::new(&vocabulary)?,
            replay: Replay::new(&vocabulary),
            template: template.map(Template::new).transpose()?,
            eos: files.end_tokens(config_eos, &vocabulary)?.into(),
            sampling: files.sampling()?,
            vocabulary: Arc::new(vocabulary),
            constraints: Mutex::default(),
        })
    }

    /// Tokens of a text; spellings of special tokens become those tokens. Nothing is added at either end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encoder.encode(text)
    }

    /// The text of tokens, special ones included; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id past the model's vocabulary.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        let mut bytes = Vec::new();
        for &token in tokens {
            bytes.extend_from_slice(self.token_bytes(token)?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of one token, which may be part of a character; empty for ids that the tokenizer does not use.
    ///
    /// # Errors
    /// An id past the model's vocabulary.
    pub fn token_bytes(&self, token: u32) -> Result<&[u8], TextError> {
        if token as usize >= self.vocabulary.rows {
            return Err(TextError::UnknownToken { token, vocab: self.vocabulary.rows });
        }
        Ok(self.vocabulary.bytes(token))
    }

    /// Remembers a conversation's tokens for [`Text::prompt`], as if it had rendered it and heard its answers: for
    /// conversations whose states outlived the program.
    pub fn known(&self, tokens: &[u32]) {
        self.replay.known(tokens, &self.vocabulary, &self.guard);
    }

    /// The same text cut into tokens of at most `bytes_max` bytes; added tokens stay. For tests and bug reports.
    pub fn cut(&self, tokens: &[u32], bytes_max: usize) -> Vec<u32> {
        cut(&self.vocabulary, tokens, bytes_max)
    }

    /// Renders a conversation with the checkpoint's chat template.
    ///
    /// System messages are merged into the first; a conversation without a question renders too.
    ///
    /// # Errors
    /// No template, or a template that refuses the conversation.
    pub fn prompt(&self, messages: &[Message], tools: &[Tool], options: &ChatOptions) -> Result<Prompt, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoChatTemplate)?;
        let (guard, encoder, replay) = (&self.guard, &self.encoder, &self.replay);
        let renderer = Renderer { template, guard, encoder, replay, special: &self.vocabulary.special };
        renderer.render(messages, tools, options)
    }

    /// Remembers a chat answer: when a later conversation repeats it, [`Text::prompt`] gives these very tokens,
    /// even where the encoder would choose others. `prompt` is the tokens that it answered.
    pub fn answered(&self, prompt: &[u32], output: &[u32]) {
        self.replay.answered(prompt, output, &self.vocabulary, &self.guard);
    }

    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens that end an answer: of config, generation config and tokenizer together. Ascending.
    pub fn eos(&self) -> Arc<[u32]> {
        self.eos.clone()
    }

    pub fn sampling_defaults(&self) -> &SamplingDefaults {
        &self.sampling
    }

    pub fn special(&self) -> &SpecialIds {
        &self.vocabulary.special
    }

    /// Number of the model's embedding rows: every id is below it.
    pub fn vocab(&self) -> usize {
        self.vocabulary.rows
    }

    /// Reads a chat answer.
    pub fn output_parser(&self, options: OutputOptions) -> OutputParser {
        OutputParser::chat(self.vocabulary.clone(), options)
    }

    /// Reads a raw completion: everything is content, as it comes; `stop` texts end it.
    pub fn completion_parser(&self, stop: Vec<String>) -> OutputParser {
        OutputParser::completion(self.vocabulary.clone(), stop)
    }

    /// Turns tokens into text piece by piece, with no meaning attached.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.vocabulary.clone())
    }

    /// Holds an answer to a grammar, its thinking to a budget, or both.
    ///
    /// # Errors
    /// A grammar or schema that does not compile, with the reason.
    pub fn constraint(&self, options: &ConstraintOptions) -> Result<OutputConstraint, TextError> {
        self.factory()?.constraint(options, &self.vocabulary)
    }

    /// Does ahead what the first constraint would otherwise wait for. Takes a while: call it off the path of
    /// requests; those that need it meanwhile wait for this work and do not do it twice.
    pub fn prepare_constraints(&self) -> Result<(), TextError> {
        self.factory().map(drop)
    }

    fn factory(&self) -> Result<Arc<ConstraintFactory>, TextError> {
        let mut factory = self.constraints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(factory) = &*factory {
            return Ok(factory.clone());
        }
        let made = Arc::new(ConstraintFactory::new(&self.vocabulary, self.eos(), |plain| self.encoder.encode_plain(plain))?);
        Ok(factory.insert(made).clone())
    }
}
