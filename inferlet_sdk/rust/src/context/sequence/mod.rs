//! A token sequence and its KV cache: the engine under `Context`.
//!
//! The cache holds the first `computed` tokens; the others are pending and run together at the next `flush`. The output
//! embed holds the output of token `output_of - 1`. Token n is at position `offset` + n if
//! nothing behind it was dropped, as is every token that will run.

mod scoring;
mod states;
mod stepping;

use std::rc::Rc;

use super::model::{Held, Model, Queue, KEPT_INPUTS};
use super::pages::Pages;
use crate::error::{Code, Error, Result};
use crate::raw;
use crate::raw::allocate::Memory;
use states::KeptStates;
use stepping::LastStep;

/// Most tokens in one forward, which bounds the embeds that a long prompt needs.
const MAX_CHUNK: usize = 2048;
/// Least tokens of a prompt that is shared: what is shorter runs faster than it is found.
pub(super) const LEAST_SHARED: usize = 256;
/// A longer prompt is not run with fewer embeds than this: it would take very many calls.
const LEAST_CHUNK: usize = 32;

pub(crate) struct Sequence {
    pub model: Rc<Model>,
    pub queue: Rc<Queue>,
    pub adapter: String,
    pub tokens: Vec<u32>,
    pub offset: isize,
    pub shares: bool, // whether other inferlets of the user may use the keys of its prompt
    pub computed: usize,
    pub ends: Vec<usize>, // of the first parts of its prompt, in tokens; others may go on from there
    pub output_of: usize,
    pub half: Option<usize>, // so many tokens there were when a generation ended, maybe within a character
    pub pages: Pages,
    gaps: Vec<(usize, isize)>, // where tokens were dropped, or there is a gap: by how many positions those behind moved up
    output: Option<Rc<Held>>,
    states: KeptStates,
    last_step: Option<LastStep>,
}

impl Sequence {
    pub fn new(model: Rc<Model>, adapter: &str) -> Result<Self> {
        Ok(Sequence {
            queue: model.queue()?,
            adapter: adapter.to_string(),
            tokens: Vec::new(),
            offset: 0,
            shares: true,
            computed: 0,
            ends: Vec::new(),
            output_of: 0,
            half: None,
            pages: Pages::new(model.clone()),
            gaps: Vec::new(),
            output: None,
            states: KeptStates::default(),
            last_step: None,
            model,
        })
    }

    /// The position of a token that will run.
    pub fn position(&self, token: usize) -> usize {
        (token as isize + self.offset) as usize
    }

    /// Where a token is that has keys and was not dropped.
    pub fn position_of_key(&self, token: usize) -> isize {
        let moved = self.gaps.iter().filter(|(start, _)| *start > token).map(|(_, gap)| *gap);
        token as isize + self.offset + moved.sum::<isize>()
    }

    /// The tokens between two that begin behind a gap.
    pub fn behind_gaps(&self, start: usize, stop: usize) -> impl Iterator<Item = usize> + '_ {
        self.gaps.iter().map(|(token, _)| *token).filter(move |token| start < *token && *token < stop)
    }

    /// Where its tokens are that have keys: each of `begins` is a token, and its position, which those behind it follow.
    /// What will run is at `behind` and further on. What is cut before a gap goes on where it ends.
    pub fn lay(&mut self, begins: &[(usize, isize)], behind: isize) {
        let end = (self.computed, behind.max(self.computed as isize));
        let places: Vec<(usize, isize)> = begins.iter().copied().chain([end]).collect();
        self.offset = (places[0].1 - places[0].0 as isize).max(0);
        for (token, position) in &places[1..] {
            let gap = position - *token as isize - self.offset;
            if gap > 0 || (gap < 0 && *token == self.computed) {
                self.gaps.push((*token, -gap));
                self.offset += gap;
            }
        }
    }

    /// How many tokens the model's context has room for; an error if there are too many already.
    pub fn room(&self) -> Result<usize> {
        let (used, most) = (self.position(self.tokens.len()), self.model.max_context);
        most.checked_sub(used).ok_or_else(|| {
            let message = format!(
                "the context has {} tokens, and {} takes at most {}: fill less, cut it with `truncate`, or go on behind \
                 its end alone: `ctx.restarted(400)`",
                used, self.model.name, most
            );
            Error::with(Code::TooLong, message)
        })
    }

    /// A sequence with the same tokens. Runs pending tokens first, so that they are computed once for both.
    pub fn fork(&mut self) -> Result<Sequence> {
        if !self.tokens.is_empty() && self.pages.dropped_up_to(self.tokens.len()).is_none() {
            self.flush()?;
        }
        if self.computed % self.model.page_size == 0 {
            self.keep_state()?;
        }
        Ok(Sequence {
            model: self.model.clone(),
            queue: self.model.queue()?,
            adapter: self.adapter.clone(),
            tokens: self.tokens.clone(),
            offset: self.offset,
            shares: self.shares,
            computed: self.computed,
            ends: self.ends.clone(),
            output_of: self.output_of,
            half: self.half,
            pages: self.pages.fork(self.computed),
            gaps: self.gaps.clone(),
            output: self.output.clone(),
            states: self.states.of_fork(),
            last_step: None,
        })
    }

    /// Runs all pending tokens; the output embed then belongs to the last one.
    pub fn flush(&mut self) -> Result<()> {
        if self.pending()? > 0 {
            let output = self.own_output(false)?;
            self.compute(self.tokens.len(), &[output, 1])?;
            self.output_of = self.computed;
        }
        Ok(())
    }

    /// The address of the output embed, after `flush`. Only for reading.
    pub fn output(&self) -> u32 {
        self.output.as_ref().map_or(0, |output| output.address)
    }

    /// The address of an output embed that nobody else has, which holds what the one before does if `keep`.
    pub fn own_output(&mut self, keep: bool) -> Result<u32> {
        if let Some(output) = self.output.as_ref().filter(|output| output.is_writable()) {
            return Ok(output.address);
        }
        let own = self.model.allocate(self.queue.number, Memory::Emb, 1)?.remove(0);
        if let (true, Some(shared)) = (keep, &self.output) {
            raw::allocate::copy_emb(self.queue.number, &[shared.address, 1], &[own.address, 1])?;
        }
        Ok(self.output.insert(own).address)
    }

    /// Refuses a sequence without tokens.
    pub fn check_filled(&self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::with(Code::InvalidState, "the context is empty: `fill` it before generating"));
        }
        Ok(())
    }

    /// Number of tokens that have to run for the output of the last one.
    fn pending(&mut self) -> Result<usize> {
        self.check_filled()?;
        if self.output_of == self.tokens.len() && self.computed == self.output_of {
            return Ok(0);
        }
        self.room()?;
        self.rewind_last()?;
        Ok(self.tokens.len() - self.computed)
    }

    /// Runs pending tokens up to `end`; the last outputs go to `outputs` (ranges).
    pub fn compute(&mut self, end: usize, outputs: &[u32]) -> Result<()> {
        while self.computed < end {
            let (start, count) = (self.computed, end - self.computed);
            if count <= KEPT_INPUTS {
                let inputs = self.queue.inputs(&self.model, count)?;
                let tokens = self.tokens[start..end].to_vec();
                self.forward(&tokens, &inputs, outputs, 0, 0, 0.0)?;
                continue;
            }
            let (first, count) = self.model.allocate_embeds(self.queue.number, count.min(MAX_CHUNK), LEAST_CHUNK)?;
            let inputs = [first, count as u32];
            let tokens = self.tokens[start..start + count].to_vec();
            let run = self.forward(&tokens, &inputs, if start + count == end { outputs } else { &[] }, 0, 0, 0.0);
            raw::allocate::dealloc(self.queue.number, Memory::Emb, &inputs)?;
            run?;
        }
        Ok(())
    }

    /// Runs tokens and appends their keys and values. The rest is that of the raw call.
    pub fn forward(
        &mut self,
        tokens: &[u32],
        inputs: &[u32],
        outputs: &[u32],
        sampler: u32,
        k: u32,
        temperature: f32,
    ) -> Result<u32> {
        let (positions, output) = self.room_for(tokens.len())?;
        let context = self.pages.context();
        let queue = self.queue.number;
        let number = raw::forward::forward(
            queue,
            context,
            inputs,
            &output,
            outputs,
            tokens,
            &positions,
            &[],
            &self.adapter,
            sampler,
            k,
            temperature,
            false,
        )?;
        self.have_run(tokens.len());
        Ok(number)
    }

    /// The positions of the next `count` tokens, and the pages for them.
    fn room_for(&mut self, count: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let (start, stop) = (self.computed, self.computed + count);
        self.pages.reserve(self.queue.number, start, stop)?;
        let positions = (start..stop).map(|token| self.position(token) as u32).collect();
        Ok((positions, self.pages.output(start)))
    }

    fn have_run(&mut self, count: usize) {
        self.computed += count;
        self.queue.last_step.set(u32::MAX);
    }

    /// An error if the last token was dropped: it would run again for its output, and be seen again.
    pub fn check_output(&self) -> Result<()> {
        if let Some(start) = self.pages.dropped_up_to(self.tokens.len()) {
            let message = format!(
                "the last token was dropped, and gives no output: fill something behind it, or truncate to at most {}",
                start
            );
            return Err(Error::with(Code::InvalidState, message));
        }
        Ok(())
    }

    /// Drops keys and values of the last token, which runs again for its output.
    pub fn rewind_last(&mut self) -> Result<()> {
        self.check_output()?;
        self.rewind(self.tokens.len() - 1)
    }

    /// Drops keys and values after the first `length` tokens; at a model with states, after the last one of them where
    /// a state is.
    pub fn rewind(&mut self, mut length: usize) -> Result<()> {
        if self.computed > length {
            if self.model.has_states {
                length = self.find_state(length)?;
            }
            self.pages.cut(self.queue.number, length)?;
            self.computed = length;
            self.output_of = if self.cut_states()? { length } else { 0 };
            self.last_step = None;
        }
        Ok(())
    }

    /// Appends tokens.
    pub fn append(&mut self, tokens: &[u32]) {
        self.append_parts(tokens, &[]);
    }

    /// Appends tokens; `parts`: what first parts of them alone are.
    pub fn append_parts(&mut self, tokens: &[u32], parts: &[Vec<u32>]) {
        if self.notes_ends(tokens.len()) {
            let start = self.tokens.len();
            self.ends.extend((start > 0).then(|| start));
            self.ends.extend(parts.iter().map(|part| start + common_length(part, tokens)));
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Whether, with so many tokens more, parts of its prompt matter: at models with states others can go on where those
    /// of a long one end.
    pub fn notes_ends(&self, more: usize) -> bool {
        self.model.has_states && self.computed == 0 && self.tokens.len() + more >= LEAST_SHARED
    }

    /// Keeps the first `length` tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.tokens.truncate(length);
        self.offset += self.gaps.iter().filter(|(start, _)| *start >= length).map(|(_, gap)| *gap).sum::<isize>();
        self.gaps.retain(|(start, _)| *start < length);
        self.ends.retain(|end| *end <= length);
        self.rewind(length)
    }

    /// Hides tokens from what comes. The last token stays, and runs again for the next output. With `close_gap` the
    /// tokens behind move up, if the model can move tokens.
    pub fn drop_tokens(&mut self, start: usize, stop: usize, close_gap: bool) -> Result<()> {
        self.model.check_states("drop_tokens")?;
        self.compute(self.tokens.len() - 1, &[])?;
        let closes = close_gap && self.model.moves_tokens;
        let gap = self.pages.drop_tokens(self.queue.number, start, stop, self.computed, closes)?;
        self.gaps.push((start, gap as isize));
        self.offset -= gap as isize;
        self.output_of = 0;
        self.last_step = None;
        Ok(())
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.output = None;
        self.states = KeptStates::default();
        self.pages = Pages::new(self.model.clone());
        self.model.give_back();
    }
}

/// How many first tokens two texts have in common.
pub(super) fn common_length(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(left, right)| left == right).count()
}
