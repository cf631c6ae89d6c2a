//! States of a text that are kept, so that the sequence can go back there. The host knows where states are
//! (`find-state`); here is which of them stay, and the outputs there. All of it does nothing at a model without states.

use std::rc::Rc;

use super::Sequence;
use crate::context::model::Held;
use crate::error::Result;
use crate::raw;

/// Those of one sequence. Each stays until the sequence is cut before it; the one that is held, until another one is.
#[derive(Default)]
pub(super) struct KeptStates {
    stay: Vec<usize>,
    held: usize,                     // 0: none
    drafted: Option<usize>,          // where the last draft began, as long as its states are there
    outputs: Vec<(usize, Rc<Held>)>, // who goes back there runs no token for it
}

impl KeptStates {
    /// Those that a fork has, too.
    pub fn of_fork(&self) -> Self {
        KeptStates { stay: self.stay.clone(), outputs: self.outputs.clone(), ..Self::default() }
    }
}

impl Sequence {
    /// Keeps the state behind the tokens that have keys.
    pub fn keep_state(&mut self) -> Result<()> {
        if self.keep()? {
            self.note_kept();
        }
        Ok(())
    }

    /// The state behind the tokens that have keys is kept.
    pub fn note_kept(&mut self) {
        let states = &mut self.states;
        if !states.stay.contains(&self.computed) {
            states.stay.push(self.computed);
        }
        if states.held == self.computed {
            states.held = 0;
        }
    }

    /// Keeps the state behind the tokens that have keys until the next time, so that what comes can be dropped.
    pub fn hold_state(&mut self) -> Result<()> {
        if self.states.held != self.computed {
            self.let_go()?;
        }
        if self.keep()? && !self.states.stay.contains(&self.computed) {
            self.states.held = self.computed;
        }
        Ok(())
    }

    /// Whether the model has states.
    fn keep(&mut self) -> Result<bool> {
        let place = self.computed;
        if !self.model.has_states || place == 0 {
            return Ok(false);
        }
        self.pages.own_end(self.queue.number, place)?; // in the copy that it would become nothing is kept
        raw::state::keep_state(self.queue.number, self.pages.context())?;
        let is_new = self.output_of == place && self.states.outputs.iter().all(|(at, _)| *at != place);
        if let (true, Some(output)) = (is_new, &self.output) {
            self.states.outputs.push((place, output.clone()));
        }
        Ok(true)
    }

    /// Gives the state that is held back, unless others may go on from there.
    fn let_go(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.states.held);
        if held > 0 && self.pages.owns(held) && self.find_state(held)? == held {
            self.drop_state(held)?;
        }
        self.states.outputs.retain(|(at, _)| *at != held);
        Ok(())
    }

    /// The sequence was cut to the tokens that have keys. Whether it has the output of the last of them, too.
    pub(super) fn cut_states(&mut self) -> Result<bool> {
        let (place, states) = (self.computed, &mut self.states);
        states.stay.retain(|one| *one <= place);
        states.outputs.retain(|(at, _)| *at <= place);
        if states.held > place {
            states.held = 0;
        }
        if place > 0 && (states.held == place || states.stay.contains(&place)) {
            raw::state::keep_state(self.queue.number, self.pages.context())?; // again: its page may be a copy
        }
        let found = self.states.outputs.iter().find(|(at, _)| *at == place).map(|(_, output)| output.clone());
        let is_there = found.is_some();
        self.output = found.or_else(|| self.output.take());
        Ok(is_there)
    }

    /// The last place up to behind the first `length` tokens from which a forward may go on.
    pub fn find_state(&mut self, length: usize) -> Result<usize> {
        raw::state::find_state(self.queue.number, self.pages.context(), length as u32).map(|found| found as usize)
    }

    /// Nothing goes on any more from behind the first `length` tokens, where a state is.
    pub fn drop_state(&mut self, length: usize) -> Result<()> {
        raw::state::drop_state(self.queue.number, self.pages.context(), length as u32)
    }

    /// Runs tokens of which some may not stay, so at a model with states each leaves one.
    pub fn run_draft(&mut self, tokens: &[u32], inputs: &[u32], outputs: &[u32]) -> Result<()> {
        if !self.model.has_states {
            return self.forward(tokens, inputs, outputs, 0, 0, 0.0).map(|_| ());
        }
        match self.forward_draft(tokens, inputs, outputs) {
            Err(error) if error.is_lack_of_room() => {
                self.hold_state()?; // it lets the one at the beginning go
                self.forward_draft(tokens, inputs, outputs)
            }
            other => other,
        }
    }

    fn forward_draft(&mut self, tokens: &[u32], inputs: &[u32], outputs: &[u32]) -> Result<()> {
        let (positions, output) = self.room_for(tokens.len())?;
        let queue = self.queue.number;
        raw::input_text::embed_txt(queue, tokens, &positions, inputs)?;
        raw::state::forward_draft(queue, self.pages.context(), inputs, &output, outputs, &self.adapter)?;
        self.states.drafted = Some(self.computed);
        self.have_run(tokens.len());
        Ok(())
    }

    /// States that the last draft has left are given back, but for the one from which the last token runs, and the one
    /// with which it began.
    pub fn let_go_drafted(&mut self) -> Result<()> {
        if let Some(drafted) = self.states.drafted.take() {
            if self.output_of != self.tokens.len() {
                self.rewind(self.tokens.len() - 1)?;
            }
            let mut end = self.computed;
            while end > drafted {
                end = self.find_state(end - 1)?;
                if end > drafted {
                    self.drop_state(end)?;
                }
            }
        }
        Ok(())
    }

    /// Runs what is pending, and keeps the state behind all tokens.
    pub fn keep_end(&mut self) -> Result<()> {
        if self.model.has_states && !self.tokens.is_empty() {
            self.flush()?;
            self.keep_state()?;
        }
        Ok(())
    }
}
