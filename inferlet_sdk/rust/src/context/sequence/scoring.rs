//! Log-probabilities of given tokens, many of them in one forward.

use std::rc::Rc;

use super::Sequence;
use crate::context::model::{ranges, Held};
use crate::error::{Code, Error, Result};
use crate::raw;
use crate::raw::allocate::Memory;
use crate::task::HostFuture;

/// Most tokens that one forward scores: each needs an output embed, and a call reads as many as a batch has rows.
const MOST_SCORED: usize = 64;

impl Sequence {
    /// Appends tokens; the log-probability of each. The last one needs no run for that.
    pub async fn append_scored(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let run = tokens.len().saturating_sub(1);
        if run > self.room()? {
            let message = format!(
                "{} tokens do not fit behind the {} of the context, as {} takes at most {}: give fewer, or cut the \
                 context with `truncate`",
                run,
                self.position(self.tokens.len()),
                self.model.name,
                self.model.max_context
            );
            return Err(Error::with(Code::TooLong, message));
        }
        self.flush()?;
        let (mut scores, mut rest) = (Vec::new(), tokens);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(rest.len().min(MOST_SCORED));
            let run = chunk.len() - usize::from(behind.is_empty());
            scores.extend(self.append_chunk(chunk, run).await?);
            rest = behind;
        }
        Ok(scores)
    }

    /// The output of the sequence scores the first token; that of each of the `run` tokens that run, the next one.
    async fn append_chunk(&mut self, tokens: &[u32], run: usize) -> Result<Vec<f32>> {
        let first = self.logprobs(&[self.output(), 1], &tokens[..1])?;
        let mut others = None;
        if run > 0 {
            let embeds = self.model.allocate(self.queue.number, Memory::Emb, 2 * run)?;
            let (inputs, outputs) = embeds.split_at(run);
            self.forward(&tokens[..run], &places(inputs), &places(outputs), 0, 0, 0.0)?;
            let scored = &tokens[1..tokens.len().min(run + 1)];
            if !scored.is_empty() {
                others = Some(self.logprobs(&places(&outputs[..scored.len()]), scored)?);
            }
            self.output = outputs.last().cloned();
        }
        self.tokens.extend_from_slice(tokens);
        self.output_of = self.computed;
        let mut scores = first.await?;
        if let Some(others) = others {
            scores.extend(others.await?);
        }
        Ok(scores)
    }

    fn logprobs(&self, outputs: &[u32], tokens: &[u32]) -> Result<HostFuture<Vec<f32>>> {
        let number = raw::output_text::get_logprobs(self.queue.number, outputs, tokens)?;
        Ok(HostFuture::new(number, raw::core::await_floats))
    }
}

fn places(embeds: &[Rc<Held>]) -> Vec<u32> {
    ranges(embeds.iter().map(|embed| embed.address))
}
