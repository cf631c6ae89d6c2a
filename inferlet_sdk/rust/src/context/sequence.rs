//! A token sequence and its KV cache: the engine under `Context`.
//!
//! The cache holds the first `computed` tokens; the others are pending and run together at the next `flush`. The output
//! embed holds the output of token `output_of - 1`. Token n is at position `offset` + n if
//! nothing behind it was dropped, as is every token that will run.

use std::rc::Rc;

use super::model::{Held, Model, Queue, KEPT_INPUTS};
use super::pages::Pages;
use crate::error::{Code, Error, Result};
use crate::generation::dist::{await_dist, dist_of, Dist};
use crate::raw;
use crate::raw::allocate::Memory;
use crate::task::{is_alone, HostFuture};

/// Most tokens in one forward, which bounds the embeds that a long prompt needs.
const MAX_CHUNK: usize = 2048;
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
    kept: usize, // behind so many tokens a state is kept, at a model with states
    pub output_of: usize,
    pub pages: Pages,
    gaps: Vec<(usize, usize)>, // first tokens of what was dropped, and by how many positions those behind moved up
    output: Option<Rc<Held>>,
    last_step: Option<LastStep>,
}

/// The step that gave the last distribution: what has to be the same for the next one to go on from it.
#[derive(PartialEq)]
struct LastStep {
    stop: usize,
    pages: usize,
    output: u32,
    k: usize,
    temperature: f32,
}

/// Numbers of a list of pages with which a step can be gone on from.
const SHORT: usize = 64;

impl Sequence {
    pub fn new(model: Rc<Model>, adapter: &str) -> Result<Self> {
        Ok(Sequence {
            queue: model.queue()?,
            adapter: adapter.to_string(),
            tokens: Vec::new(),
            offset: 0,
            shares: true,
            computed: 0,
            kept: 0,
            output_of: 0,
            pages: Pages::new(model.clone()),
            gaps: Vec::new(),
            output: None,
            last_step: None,
            model,
        })
    }

    /// The position of a token that will run.
    pub fn position(&self, token: usize) -> usize {
        (token as isize + self.offset) as usize
    }

    /// A sequence with the same tokens. Runs pending tokens first, so that they are computed once for both.
    pub fn fork(&mut self) -> Result<Sequence> {
        if !self.tokens.is_empty() {
            self.flush()?;
        }
        if self.computed % self.model.page_size == 0 {
            self.hold_state()?;
        } else if self.kept > self.computed / self.model.page_size * self.model.page_size {
            self.kept = 0; // its page is shared from now on
        }
        Ok(Sequence {
            model: self.model.clone(),
            queue: self.model.queue()?,
            adapter: self.adapter.clone(),
            tokens: self.tokens.clone(),
            offset: self.offset,
            shares: self.shares,
            computed: self.computed,
            kept: if self.kept % self.model.page_size == 0 { self.kept } else { 0 },
            output_of: self.output_of,
            pages: self.pages.fork(self.computed),
            gaps: self.gaps.clone(),
            output: self.output.clone(),
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

    /// Number of tokens that have to run for the output of the last one.
    fn pending(&mut self) -> Result<usize> {
        if self.tokens.is_empty() {
            return Err(Error::with(Code::InvalidState, "the context is empty: `fill` it before generating"));
        }
        if self.output_of == self.tokens.len() && self.computed == self.output_of {
            return Ok(0);
        }
        self.rewind(self.tokens.len() - 1)?;
        Ok(self.tokens.len() - self.computed)
    }

    /// Runs pending tokens up to `end`; the last outputs go to `outputs` (ranges).
    pub fn compute(&mut self, end: usize, outputs: &[u32]) -> Result<()> {
        while self.computed < end {
            let count = end - self.computed;
            if count <= KEPT_INPUTS {
                let inputs = self.queue.inputs(count)?;
                self.forward(count, &inputs, outputs, 0, 0, 0.0)?;
                continue;
            }
            let (first, count) = self.allocate_inputs(count.min(MAX_CHUNK))?;
            let inputs = [first, count as u32];
            let is_last = self.computed + count == end;
            self.forward(count, &inputs, if is_last { outputs } else { &[] }, 0, 0, 0.0)?;
            raw::allocate::dealloc(self.queue.number, Memory::Emb, &inputs)?;
        }
        Ok(())
    }

    /// At most `count` embeds, or as many as there are.
    fn allocate_inputs(&self, mut count: usize) -> Result<(u32, usize)> {
        self.model.give_back();
        loop {
            match raw::allocate::alloc(self.queue.number, Memory::Emb, count as u32) {
                Ok(first) => return Ok((first, count)),
                Err(error) if error.is_lack_of_room() && count > LEAST_CHUNK => count = (count / 2).max(LEAST_CHUNK),
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs the next `count` tokens and appends their keys and values. The rest is that of the raw call.
    fn forward(
        &mut self,
        count: usize,
        inputs: &[u32],
        outputs: &[u32],
        sampler: u32,
        k: u32,
        temperature: f32,
    ) -> Result<u32> {
        let (start, stop) = (self.computed, self.computed + count);
        self.pages.reserve(self.queue.number, start, stop)?;
        let positions: Vec<u32> = (start..stop).map(|token| self.position(token) as u32).collect();
        let output = self.pages.output(start);
        let tokens = &self.tokens[start..stop];
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
        self.computed = stop;
        self.queue.last_step.set(u32::MAX);
        Ok(number)
    }

    /// Runs tokens that are not in the sequence behind those that are, with an output for each; `compute` has run all.
    pub fn run_beyond(&mut self, tokens: &[u32], inputs: &[u32], outputs: &[u32]) -> Result<()> {
        let length = self.tokens.len();
        self.tokens.truncate(self.computed);
        self.tokens.extend_from_slice(tokens);
        let done = self.forward(tokens.len(), inputs, outputs, 0, 0, 0.0);
        self.tokens.truncate(length);
        self.output_of = 0;
        done.map(|_| ())
    }

    /// The distribution of the next token. A few pending tokens run in the same call.
    pub async fn next_dist(&mut self, k: usize, temperature: f32) -> Result<Dist> {
        if let Some(dist) = self.go_on(k, temperature) {
            return dist;
        }
        let pending = self.pending()?;
        let number = if pending == 0 || pending > KEPT_INPUTS {
            self.flush()?;
            raw::output_text::get_next_dist(self.queue.number, &[self.output(), 1], k as u32, temperature)?
        } else {
            let output = self.own_output(false)?;
            let inputs = self.queue.inputs(pending)?;
            let number = self.forward(pending, &inputs, &[output, 1], 0, k as u32, temperature)?;
            self.output_of = self.computed;
            self.note_step(k, temperature);
            number
        };
        HostFuture::new(number, await_dist).await
    }

    /// The distribution after one token more than the last step had, if nothing else goes on in the program: one call
    /// with two numbers.
    fn go_on(&mut self, k: usize, temperature: f32) -> Option<Result<Dist>> {
        let (start, output) = (self.computed, self.output());
        let pages = self.pages.room_behind(start)?;
        let wanted = LastStep { stop: start, pages, output, k, temperature };
        let goes_on = self.last_step.as_ref() == Some(&wanted)
            && self.tokens.len() == start + 1
            && self.queue.last_step.get() == output
            && self.output.as_ref().map_or(false, Held::is_writable)
            && is_alone();
        if !goes_on {
            return None;
        }
        let found = raw::fused::continue_with_dist(self.queue.number, self.tokens[start]);
        self.computed = start + 1;
        if found.is_err() {
            self.last_step = None;
            let _ = self.rewind(start); // nobody knows whether the token has run
        } else {
            self.output_of = self.computed;
            self.last_step = Some(LastStep { stop: self.computed, ..wanted });
        }
        Some(found.map(dist_of))
    }

    fn note_step(&mut self, k: usize, temperature: f32) {
        let (stop, output) = (self.computed, self.output());
        let is_short = self.pages.context().len() <= SHORT;
        self.last_step = self.pages.room_behind(stop).filter(|_| is_short).map(|pages| {
            self.queue.last_step.set(output);
            LastStep { stop, pages, output, k, temperature }
        });
    }

    /// Drops keys and values after the first `length` tokens; at a model with states, after those where one is kept.
    pub fn rewind(&mut self, mut length: usize) -> Result<()> {
        if self.computed > length {
            if self.model.has_states {
                self.kept = if self.kept > length { 0 } else { self.kept };
                length = self.kept;
            }
            self.pages.cut(self.queue.number, length)?;
            self.computed = length;
            self.output_of = 0;
            self.last_step = None;
        }
        Ok(())
    }

    /// Keeps the state behind the tokens that have keys, so that what comes can be dropped, and not the one of the last
    /// time any more, unless others may go on from there. Nothing to do without states.
    pub fn hold_state(&mut self) -> Result<()> {
        if !self.model.has_states || self.computed == 0 || self.kept == self.computed {
            return Ok(());
        }
        let queue = self.queue.number;
        if self.kept > 0 && self.pages.owns_end(self.kept) {
            raw::state::drop_state(queue, self.pages.context(), self.kept as u32)?;
        }
        raw::state::keep_state(queue, self.pages.context())?;
        self.kept = self.computed;
        Ok(())
    }

    /// Keeps the first `length` tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.tokens.truncate(length);
        self.offset +=
            self.gaps.iter().filter(|(start, _)| *start >= length).map(|(_, gap)| *gap as isize).sum::<isize>();
        self.gaps.retain(|(start, _)| *start < length);
        self.rewind(length)
    }

    /// Hides tokens from what comes. The last token stays, and runs again for the next output. With `close_gap` the
    /// tokens behind move up, if the model can move tokens.
    pub fn drop_tokens(&mut self, start: usize, stop: usize, close_gap: bool) -> Result<()> {
        self.compute(self.tokens.len() - 1, &[])?;
        let closes = close_gap && self.model.moves_tokens;
        let gap = self.pages.drop_tokens(self.queue.number, start, stop, self.computed, closes)?;
        self.gaps.push((start, gap));
        self.offset -= gap as isize;
        self.output_of = 0;
        self.last_step = None;
        Ok(())
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.output = None;
        self.pages = Pages::new(self.model.clone());
        self.model.give_back();
    }
}
