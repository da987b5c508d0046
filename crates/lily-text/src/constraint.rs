//! Which tokens may come next: structured output, and an end to thinking.
//!
//! An answer has up to three parts. While the model thinks it is free, except that it may not end, and that a
//! budget closes the block. The line breaks after the block are written for it, as the chat format has them.
//! Then the grammar rules, until it is complete and only an end token is left.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::TextError;
use crate::grammar::Grammar;
use crate::vocabulary::Vocabulary;

/// What an answer is held to.
#[derive(Clone, Debug, Default)]
pub struct ConstraintOptions {
    /// The prompt ended inside a think block.
    pub in_thinking: bool,
    /// Tokens after which the think block is closed.
    pub thinking_budget: Option<usize>,
    pub grammar: Option<Grammar>,
}

/// Follows one answer. The engine asks [`forced`](Self::forced), else [`mask`](Self::mask), chooses a token,
/// and reports it to [`accept`](Self::accept).
pub struct OutputConstraint {
    part: Part,
    matcher: Option<Matcher>,
    marks: Arc<Marks>,
    budget: Option<usize>,
    /// What was thought ends with a line break.
    line_ended: bool,
    failure: Option<String>,
}

enum Part {
    /// Tokens thought so far.
    Thinking(usize),
    /// Tokens that must come now.
    Forced(VecDeque<u32>),
    Content,
}

/// Tokens that constraints speak of.
struct Marks {
    rows: usize,
    eos: Arc<[u32]>,
    think_end: Option<u32>,
    /// The tokens whose text ends with a line break, one bit each.
    line_ends: Vec<u32>,
    /// The end of a think block that did not end by itself, on a line of its own; and what follows any block.
    line_break: Vec<u32>,
    close: Vec<u32>,
    after_close: Vec<u32>,
}

/// Compiles grammars for one vocabulary.
pub(crate) struct ConstraintFactory {
    parsers: ParserFactory,
    marks: Arc<Marks>,
}

impl ConstraintFactory {
    /// `encode` encodes plain text.
    pub fn new(
        vocabulary: &Vocabulary,
        eos: Arc<[u32]>,
        encode: impl Fn(&str) -> Result<Vec<u32>, TextError>,
    ) -> Result<ConstraintFactory, TextError> {
        let words: Vec<Vec<u8>> = (0..vocabulary.rows as u32).map(|token| trie_word(vocabulary, token)).collect();
        let end = eos.first().copied().unwrap_or(vocabulary.special.im_end);
        let mut trie = TokTrie::from(&TokRxInfo::new(vocabulary.rows as u32, end), &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(&eos);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut parsers = ParserFactory::new_simple(&environment).map_err(grammar_error)?;
        parsers.quiet();
        let think_end = vocabulary.special.think_end;
        let after_close = encode("\n\n")?;
        let close = think_end.into_iter().chain(after_close.iter().copied()).collect();
        let eos = if eos.is_empty() { Arc::from([end]) } else { eos };
        let rows = vocabulary.rows;
        let line_ends: Vec<u32> = (0..rows as u32).filter(|token| vocabulary.bytes(*token).ends_with(b"\n")).collect();
        let marks = Marks { rows, eos, think_end, line_ends: only(&line_ends, rows), line_break: encode("\n")?, close, after_close };
        Ok(ConstraintFactory { parsers, marks: Arc::new(marks) })
    }

    /// # Errors
    /// A grammar that does not compile, with the reason.
    pub fn constraint(&self, options: &ConstraintOptions, vocabulary: &Vocabulary) -> Result<OutputConstraint, TextError> {
        let matcher = match &options.grammar {
            None => None,
            Some(grammar) => {
                let parser = self.parsers.create_parser(grammar.compile(&vocabulary.special)?).map_err(grammar_error)?;
                let mut matcher = Matcher::new(Ok(parser));
                matcher.compute_mask().map_err(grammar_error)?;
                Some(matcher)
            }
        };
        let can_think = options.in_thinking && self.marks.think_end.is_some();
        let mut constraint = OutputConstraint {
            part: if can_think { Part::Thinking(0) } else { Part::Content },
            matcher,
            marks: self.marks.clone(),
            budget: options.thinking_budget,
            line_ended: false,
            failure: None,
        };
        constraint.watch_budget();
        Ok(constraint)
    }
}

impl OutputConstraint {
    /// The token that must come next, whatever the model says.
    pub fn forced(&mut self) -> Option<u32> {
        match &self.part {
            Part::Forced(tokens) => tokens.front().copied(),
            _ => None,
        }
    }

    /// One bit per token of the vocabulary, low bits of each word first; `None` allows all.
    pub fn mask(&mut self) -> Option<Vec<u32>> {
        let matcher = self.matcher.as_mut();
        match (&self.part, matcher) {
            (Part::Forced(tokens), _) => Some(only(&[tokens[0]], self.marks.rows)),
            (_, None) => None,
            (Part::Thinking(_), Some(_)) => Some(all_but(&self.marks.eos, self.marks.rows)),
            (Part::Content, Some(matcher)) => {
                let allowed = matcher.compute_mask_or_eos();
                Some(match allowed {
                    Ok(allowed) => fit_rows(allowed.as_slice(), self.marks.rows),
                    Err(error) => {
                        // The grammar cannot go on (its own limits): the answer ends here.
                        self.failure.get_or_insert(error.to_string());
                        only(&self.marks.eos, self.marks.rows)
                    }
                })
            }
        }
    }

    /// Reports the token that was chosen.
    pub fn accept(&mut self, token: u32) {
        match &mut self.part {
            Part::Thinking(count) if Some(token) != self.marks.think_end => {
                *count += 1;
                self.line_ended = has(&self.marks.line_ends, token);
                self.watch_budget();
            }
            Part::Thinking(_) if self.matcher.is_none() => self.part = Part::Content,
            Part::Thinking(_) => self.part = Part::Forced(self.marks.after_close.clone().into()),
            Part::Forced(tokens) => {
                tokens.pop_front();
                if tokens.is_empty() {
                    self.part = Part::Content;
                }
            }
            Part::Content => {
                let Some(matcher) = &mut self.matcher else { return };
                if !matcher.is_stopped()
                    && let Err(error) = matcher.consume_token(token)
                {
                    self.failure.get_or_insert(error.to_string());
                }
            }
        }
    }

    /// Whether the grammar is complete: the answer may end here.
    pub fn is_complete(&mut self) -> bool {
        match (&self.part, &mut self.matcher) {
            (Part::Content, Some(matcher)) => matcher.is_stopped() || matcher.is_accepting().unwrap_or(false),
            (part, None) => matches!(part, Part::Content),
            _ => false,
        }
    }

    /// Why the grammar could not be followed to its end, if so; the answer was ended early.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The block is closed as the format writes it, with one line break: more would not be there when the answer comes
    /// back, and the state saved behind it would not fit.
    fn watch_budget(&mut self) {
        if let (Part::Thinking(count), Some(budget)) = (&self.part, self.budget)
            && *count >= budget
        {
            let line_break = if self.line_ended { &[][..] } else { &self.marks.line_break };
            self.part = Part::Forced([line_break, &self.marks.close].concat().into());
        }
    }
}

fn grammar_error(error: impl std::fmt::Display) -> TextError {
    TextError::Grammar(error.to_string())
}

/// A token as the grammar's trie knows it: added tokens are marked, so that no text matches them.
fn trie_word(vocabulary: &Vocabulary, token: u32) -> Vec<u8> {
    let bytes = vocabulary.bytes(token);
    if !vocabulary.is_added(token) {
        return bytes.to_vec();
    }
    [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
}

fn only(tokens: &[u32], rows: usize) -> Vec<u32> {
    let mut mask = vec![0; rows.div_ceil(32)];
    tokens.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
    mask
}

fn has(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

fn all_but(tokens: &[u32], rows: usize) -> Vec<u32> {
    let mut mask = fit_rows(&vec![u32::MAX; rows.div_ceil(32)], rows);
    tokens.iter().for_each(|token| mask[*token as usize / 32] &= !(1 << (token % 32)));
    mask
}

/// Exactly one bit per row; bits past the last row are zero.
fn fit_rows(words: &[u32], rows: usize) -> Vec<u32> {
    let mut mask = words.to_vec();
    mask.resize(rows.div_ceil(32), 0);
    if !rows.is_multiple_of(32)
        && let Some(last) = mask.last_mut()
    {
        *last &= (1 << (rows % 32)) - 1;
    }
    mask
}
