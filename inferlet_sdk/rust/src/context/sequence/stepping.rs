//! Steps that run a token, or a few, and read the distribution behind it in one call.

use super::{Sequence, KEPT_INPUTS};
use crate::context::model::Held;
use crate::error::{Error, Result};
use crate::generation::dist::{await_dist, dist_of, Dist};
use crate::generation::sampler::Sampler;
use crate::raw;
use crate::task::{is_alone, HostFuture};

/// The step that gave the last distribution: what has to be the same for the next one to go on from it.
#[derive(PartialEq)]
pub(super) struct LastStep {
    stop: usize,
    pages: usize,
    output: u32,
    k: usize,
    temperature: f32,
}

/// Numbers of a list of pages with which a step can be gone on from.
const SHORT: usize = 64;

impl Sequence {
    /// A token behind the last one, by a sampler and its handle. A few pending tokens run in the same call.
    pub fn sample(&mut self, sampler: &Sampler, handle: u32) -> Result<HostFuture<u32>> {
        let pending = self.pending()?;
        let number = if sampler.looks_back() || pending == 0 || pending > KEPT_INPUTS {
            self.flush()?;
            let recent = sampler.recent(&self.tokens);
            raw::fused::sample(self.queue.number, self.output(), handle, recent, "", 0)?
        } else {
            self.run_pending(handle, 0, 0.0)?
        };
        Ok(HostFuture::new(number, raw::core::await_number))
    }

    /// Runs a few pending tokens, and samples or gives a distribution behind them: a future.
    fn run_pending(&mut self, sampler: u32, k: u32, temperature: f32) -> Result<u32> {
        let (tokens, output) = (self.tokens[self.computed..].to_vec(), self.own_output(false)?);
        let inputs = self.queue.inputs(&self.model, tokens.len())?;
        let number = self.forward(&tokens, &inputs, &[output, 1], sampler, k, temperature)?;
        self.output_of = self.computed;
        Ok(number)
    }

    /// The distribution of the next token. A few pending tokens run in the same call.
    pub async fn next_dist(&mut self, k: usize, temperature: f32) -> Result<Dist> {
        if let Some(dist) = self.go_on(k, temperature) {
            return dist;
        }
        if k == 0 && temperature == 0.0 {
            let why = "temperature is 0; it must be above 0: sample with a sampler of temperature 0 instead";
            return Err(Error::invalid(why)); // which a forward would take for no distribution at all
        }
        let pending = self.pending()?;
        let number = if pending == 0 || pending > KEPT_INPUTS {
            self.flush()?;
            raw::output_text::get_next_dist(self.queue.number, &[self.output(), 1], k as u32, temperature)?
        } else {
            let number = self.run_pending(0, k as u32, temperature)?;
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
            && !self.queue.is_open.get()
            && self.output.as_ref().map_or(false, Held::is_writable)
            && is_alone()
            && self.room().is_ok();
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
}
