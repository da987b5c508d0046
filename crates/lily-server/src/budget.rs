//! A thinking budget: after so many tokens the think block is closed for the model.

use lily_engine::Constraint;

/// Counts a choice's thinking tokens; when they reach the budget, the closing tokens must come next.
pub(crate) struct ThinkingBudget {
    /// The tag that ends thinking.
    end: u32,
    /// What to say when the budget is spent: a line end, the tag, an empty line.
    closing: Vec<u32>,
    left: usize,
    state: State,
}

enum State {
    Thinking,
    /// So many closing tokens have come.
    Closing(usize),
    Answering,
}

impl ThinkingBudget {
    /// For a prompt that ends inside a think block.
    pub fn new(tokens: usize, end: u32, closing: Vec<u32>) -> Self {
        ThinkingBudget { end, closing, left: tokens, state: State::Thinking }
    }
}

impl Constraint for ThinkingBudget {
    fn allowed(&mut self) -> Option<Vec<u32>> {
        None
    }

    fn accept(&mut self, token: u32) {
        self.state = match self.state {
            State::Thinking if token == self.end => State::Answering,
            State::Thinking => {
                self.left = self.left.saturating_sub(1);
                State::Thinking
            }
            State::Closing(said) => State::Closing(said + 1),
            State::Answering => State::Answering,
        };
    }

    fn forced(&mut self) -> Option<u32> {
        if matches!(self.state, State::Thinking) && self.left == 0 {
            self.state = State::Closing(0);
        }
        let State::Closing(said) = self.state else { return None };
        let next = self.closing.get(said).copied();
        if next.is_none() {
            self.state = State::Answering;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out when the model wants to say `wishes`, one after the other.
    fn run(budget: usize, wishes: &[u32]) -> Vec<u32> {
        let mut constraint = ThinkingBudget::new(budget, 9, vec![1, 9, 2]);
        let mut wishes = wishes.iter();
        let mut said = Vec::new();
        loop {
            let token = match constraint.forced() {
                Some(token) => token,
                None => match wishes.next() {
                    Some(&wish) => wish,
                    None => return said,
                },
            };
            constraint.accept(token);
            said.push(token);
        }
    }

    #[test]
    fn closes_once_and_only_when_spent() {
        assert_eq!(run(2, &[5, 6, 7, 8]), [5, 6, 1, 9, 2, 7, 8]);
        assert_eq!(run(0, &[5]), [1, 9, 2, 5]);
        assert_eq!(run(4, &[5, 9, 6, 7, 8, 5, 6]), [5, 9, 6, 7, 8, 5, 6]);
    }
}
