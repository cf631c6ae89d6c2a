//! Speculative generation: a function of the program guesses the next tokens, and the worker checks them all at once.
//!
//! A step runs the last token and the draft behind it, and `verify` says how many tokens of the draft the sampler would
//! have chosen, and the token behind them. They are exactly the tokens that sampling one by one gives. At a model with
//! states it leaves one behind each token, and goes on from that of the last one that was right.

use std::future::Future;
use std::pin::Pin;

use super::run::Pieces;
use super::sampler::{Handle, Sampler};
use crate::context::model::ranges;
use crate::context::sequence::Sequence;
use crate::error::{Error, Result};
use crate::raw;
use crate::raw::allocate::Memory;
use crate::task::HostFuture;

/// Tokens of one draft that are looked at.
const MOST_DRAFTED: usize = 63;

/// Tokens that may come next, once they are there.
pub type Guess<'a> = Pin<Box<dyn Future<Output = Result<Vec<u32>>> + 'a>>;

/// What guesses the next tokens: a function of all tokens so far, or a type of the program that needs time for it.
pub trait Draft {
    /// From all tokens so far to those that may come next; none, if it has no guess.
    fn guess<'a>(&'a mut self, tokens: &'a [u32]) -> Guess<'a>;
}

impl<F: FnMut(&[u32]) -> Vec<u32>> Draft for F {
    fn guess<'a>(&'a mut self, tokens: &'a [u32]) -> Guess<'a> {
        Box::pin(std::future::ready(Ok(self(tokens))))
    }
}

/// A draft from the text itself: at most `length` tokens behind the last place where the last `matched` tokens, or
/// fewer, stand. Good where a text repeats what it was given, as in summaries and code.
pub fn prompt_lookup(matched: usize, length: usize) -> impl FnMut(&[u32]) -> Vec<u32> {
    move |tokens| {
        for size in (1..=matched.min(tokens.len().saturating_sub(1))).rev() {
            let wanted = &tokens[tokens.len() - size..];
            let found = (0..tokens.len() - size).rev().find(|start| &tokens[*start..start + size] == wanted);
            if let Some(start) = found {
                return tokens[start + size..].iter().take(length).copied().collect();
            }
        }
        Vec::new()
    }
}

/// Tokens by drafts.
pub(crate) struct Drafted {
    draft: Box<dyn Draft>,
    handle: Handle,
    stop: Vec<u32>,
    embeds: Vec<u32>,
}

impl Drafted {
    pub fn new(draft: Box<dyn Draft>, sampler: &Sampler, stop: Vec<u32>) -> Result<Self> {
        if sampler.looks_back() {
            return Err(Error::invalid("draft: a sampler with penalties cannot check a draft: leave one of them out"));
        }
        Ok(Drafted { draft, handle: sampler.create()?, stop, embeds: Vec::new() })
    }

    /// At least one token, up to the first stop token.
    pub async fn next(&mut self, sequence: &mut Sequence, detokenizer: u32, left: usize) -> Result<Pieces> {
        let length = sequence.tokens.len();
        if sequence.output_of != length {
            sequence.rewind(length - 1)?;
        }
        let room = sequence.model.max_context.saturating_sub(sequence.position(length));
        let most = (left - 1).min(MOST_DRAFTED).min(room);
        let mut tokens = if most > 0 { self.draft.guess(&sequence.tokens).await? } else { Vec::new() };
        tokens.truncate(most);
        sequence.compute(length - 1, &[])?;
        let (accepted, next) = self.check(sequence, &tokens).await?;
        sequence.rewind(length + accepted)?;
        tokens.truncate(accepted);
        tokens.push(next);
        let end = tokens.iter().position(|token| self.stop.contains(token)).map_or(tokens.len(), |place| place + 1);
        tokens.truncate(end);
        let texts = tokens.iter().map(|token| raw::tokenize::push_tokens(detokenizer, &[*token]));
        Ok(Pieces { texts: texts.collect::<Result<_>>()?, tokens, complete: false })
    }

    /// How many tokens of the draft are right, and the token behind them.
    async fn check(&mut self, sequence: &mut Sequence, draft: &[u32]) -> Result<(usize, u32)> {
        let (queue, count) = (sequence.queue.number, draft.len() + 1);
        if self.embeds.len() < 2 * count {
            let missing = (2 * count - self.embeds.len()) as u32;
            let first = raw::allocate::alloc(queue, Memory::Emb, missing)?;
            self.embeds.extend(first..first + missing);
        }
        let mut outputs = self.embeds[count..2 * count].to_vec();
        let done = usize::from(sequence.computed == sequence.tokens.len()); // the output of the last token is there
        if done > 0 {
            outputs[0] = sequence.output();
        }
        let last = *sequence.tokens.last().expect("it is not empty");
        let tokens = &[&[last], draft].concat()[done..];
        if !tokens.is_empty() {
            let inputs = ranges(self.embeds[done..count].iter().copied());
            sequence.run_draft(tokens, &inputs, &ranges(outputs[done..].iter().copied()))?;
        }
        sequence.output_of = 0;
        let outputs = ranges(outputs.into_iter());
        let number = raw::fused::verify(queue, &outputs, draft, self.handle.0)?;
        let (accepted, next) = HostFuture::new(number, raw::fused::await_verified).await?;
        Ok((accepted as usize, next))
    }

    /// Gives everything back. The sequence has keys of its tokens only.
    pub fn close(&mut self, sequence: &mut Sequence) -> Result<()> {
        sequence.rewind(sequence.tokens.len())?;
        if self.embeds.is_empty() {
            return Ok(());
        }
        raw::allocate::dealloc(sequence.queue.number, Memory::Emb, &ranges(self.embeds.drain(..)))
    }
}
