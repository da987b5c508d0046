//! A budget for thinking, and constraints that begin only after it.

use std::collections::VecDeque;

use crate::Constraint;

/// Ends the thinking block after a number of tokens by forcing the tokens that close it cleanly; another
/// constraint, if there is one, begins behind the block.
///
/// The caller names the ids, because only it knows text: `closing` is what to say when the budget is spent,
/// such as the tokens of `\n</think>\n\n`; among them is `end`, the id of `</think>`.
pub struct Thinking {
    end: u32,
    closing: Vec<u32>,
    /// Tokens that may still be thought; `None` is no limit.
    left: Option<usize>,
    inside: bool,
    /// Forced next, before anything else.
    forced: VecDeque<u32>,
    then: Option<Box<dyn Constraint>>,
}

impl Thinking {
    /// For a prompt that ends inside a thinking block. `budget` counts thought tokens, `end` and the rest of
    /// `closing` not included.
    pub fn new(end: u32, closing: Vec<u32>, budget: Option<usize>) -> Self {
        let mut thinking = Thinking { end, closing, left: budget, inside: true, forced: VecDeque::new(), then: None };
        thinking.close_if_spent();
        thinking
    }

    /// Adds a constraint on what follows the block. Where the model closes the block itself, the tokens
    /// behind `end` in `closing` are forced as well, so that the constrained text begins at the same place.
    pub fn then(mut self, constraint: Box<dyn Constraint>) -> Self {
        self.then = Some(constraint);
        self
    }

    fn close_if_spent(&mut self) {
        if self.left == Some(0) {
            self.forced.extend(&self.closing);
            self.left = None;
        }
    }

    fn accept_inside(&mut self, token: u32) {
        let spent = !self.forced.is_empty();
        if spent {
            self.forced.pop_front();
        }
        if token == self.end {
            self.inside = false;
            if !spent && self.then.is_some() {
                let behind = self.closing.iter().skip_while(|&&token| token != self.end).skip(1);
                self.forced.extend(behind);
            }
        } else if !spent {
            self.left = self.left.map(|left| left - 1);
            self.close_if_spent();
        }
    }
}

impl Constraint for Thinking {
    fn allowed(&mut self) -> Option<Vec<u32>> {
        match &mut self.then {
            Some(then) if !self.inside => then.allowed(),
            _ => None,
        }
    }

    fn accept(&mut self, token: u32) {
        if self.inside {
            self.accept_inside(token);
        } else if self.forced.pop_front().is_none()
            && let Some(then) = &mut self.then
        {
            then.accept(token);
        }
    }

    fn forced(&mut self) -> Option<u32> {
        let own = self.forced.front().copied();
        match &mut self.then {
            Some(then) if own.is_none() && !self.inside => then.forced(),
            _ => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    /// Allows token 3 only, and counts what it is told.
    struct Threes(std::sync::Arc<std::sync::Mutex<Vec<u32>>>);

    impl Constraint for Threes {
        fn allowed(&mut self) -> Option<Vec<u32>> {
            Some(vec![0b1000])
        }
        fn accept(&mut self, token: u32) {
            self.0.lock().unwrap().push(token);
        }
    }

    /// What comes out when the model would say these tokens.
    fn run(thinking: &mut Thinking, model: &[u32]) -> Vec<u32> {
        model
            .iter()
            .map(|&token| {
                let token = thinking.forced().or_else(|| thinking.allowed().map(|mask| mask[0].trailing_zeros())).unwrap_or(token);
                thinking.accept(token);
                token
            })
            .collect()
    }

    #[test]
    fn a_spent_budget_closes_the_block() {
        let mut thinking = Thinking::new(END, vec![4, END, 5], Some(3));
        assert_eq!(run(&mut thinking, &[1, 1, 1, 1, 1, 1, 1, 1, 1]), [1, 1, 1, 4, END, 5, 1, 1, 1]);
        let mut none = Thinking::new(END, vec![END, 5], Some(0));
        assert_eq!(run(&mut none, &[1, 1, 1]), [END, 5, 1]);
    }

    #[test]
    fn a_block_that_ends_by_itself_is_left_alone() {
        let mut thinking = Thinking::new(END, vec![4, END, 5], Some(3));
        assert_eq!(run(&mut thinking, &[1, END, 2, 2, 2, 2, 2]), [1, END, 2, 2, 2, 2, 2]);
        let mut unlimited = Thinking::new(END, vec![4, END, 5], None);
        assert_eq!(run(&mut unlimited, &[1; 50]), [1; 50]);
    }

    #[test]
    fn a_constraint_begins_behind_the_block() {
        for (budget, model, expected) in
            [(Some(2), [1, 1, 1, 1, 1, 1, 1], [1, 1, 4, END, 5, 3, 3]), (None, [1, END, 1, 1, 1, 1, 1], [1, END, 5, 3, 3, 3, 3])]
        {
            let heard = std::sync::Arc::default();
            let mut thinking = Thinking::new(END, vec![4, END, 5], budget).then(Box::new(Threes(std::sync::Arc::clone(&heard))));
            assert_eq!(run(&mut thinking, &model), expected);
            assert!(heard.lock().unwrap().iter().all(|&token| token == 3) && !heard.lock().unwrap().is_empty());
        }
    }
}
