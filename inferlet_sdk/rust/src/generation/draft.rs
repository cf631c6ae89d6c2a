//! Speculative generation: a function of the program guesses the next tokens, and the worker checks them all at once.
//!
//! A step runs the last token and the draft behind it, and `verify` says how many tokens of the draft the sampler would
//! have chosen, and the token behind them. They are exactly the tokens that sampling one by one gives. At a model with
//! states it leaves one behind each token, and goes on from that of the last one that was right.
//!
//! With a grammar, each of these outputs is sampled by itself, among the tokens that may come behind the draft up to
//! there, also where a token before it is wrong. A draft is looked at as far as the grammar allows it, and up to a place
//! where tokens are forced that are run together.

use std::future::Future;
use std::pin::Pin;

use super::guide::Guide;
use super::run::Pieces;
use super::sampler::Handle;
use crate::context::model::ranges;
use crate::context::sequence::Sequence;
use crate::error::Result;
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

/// A draft that was run. A wait for what comes of it that is dropped leaves it to the next one: the sampler has drawn for
/// it.
struct Step {
    draft: Vec<u32>,
    checks: Checks,
}

/// What says how much of a draft is right.
enum Checks {
    Verified(HostFuture<(u32, u32)>),
    /// A sample at each output, and those that are there.
    Sampled(Vec<HostFuture<u32>>, Vec<u32>),
}

impl Step {
    /// What of the draft is right, and the token behind it.
    async fn right(&mut self) -> Result<Vec<u32>> {
        let (accepted, next) = match &mut self.checks {
            Checks::Verified(verified) => {
                let (accepted, next) = verified.await?;
                (accepted as usize, next)
            }
            Checks::Sampled(samples, chosen) => {
                while chosen.len() < samples.len() {
                    let sample = &mut samples[chosen.len()];
                    chosen.push(sample.await?);
                }
                let accepted = self.draft.iter().zip(&*chosen).take_while(|(token, chosen)| token == chosen).count();
                (accepted, chosen[accepted])
            }
        };
        Ok(self.draft[..accepted].iter().copied().chain([next]).collect())
    }
}

/// Tokens by drafts.
pub(crate) struct Drafted {
    draft: Box<dyn Draft>,
    handle: Handle,
    stop: Vec<u32>,
    embeds: Vec<u32>,
    guide: Option<Guide>,
    step: Option<Step>,
}

impl Drafted {
    pub fn new(draft: Box<dyn Draft>, handle: Handle, stop: Vec<u32>, guide: Option<Guide>) -> Self {
        Drafted { draft, handle, stop, embeds: Vec::new(), guide, step: None }
    }

    /// At least one token, unless nothing can follow, up to the first stop token; `start`: tokens of the sequence before
    /// the generation.
    pub async fn next(
        &mut self,
        sequence: &mut Sequence,
        detokenizer: u32,
        start: usize,
        left: usize,
    ) -> Result<Pieces> {
        let forced = self.guide.as_mut().map(|guide| guide.forced_first(left, detokenizer));
        if let Some(pieces) = forced.transpose()?.flatten() {
            return Ok(pieces);
        }
        sequence.check_filled()?;
        if self.step.is_none() {
            self.step = Some(self.begin(sequence, start, left).await?);
        }
        let right = self.step.as_mut().expect("it was begun").right().await;
        self.step = None;
        let mut tokens = right?;
        sequence.rewind(sequence.tokens.len() + tokens.len() - 1)?;
        let end = tokens.iter().position(|token| self.stop.contains(token)).map(|place| place + 1);
        tokens.truncate(end.unwrap_or(tokens.len()));
        let texts = tokens.iter().map(|token| raw::tokenize::push_tokens(detokenizer, &[*token]));
        let mut pieces = Pieces { texts: texts.collect::<Result<_>>()?, tokens, complete: false };
        match &mut self.guide {
            Some(guide) if end.is_none() && pieces.tokens.len() < left => {
                guide.go_on(&sequence.tokens[start..], &mut pieces, left, detokenizer)?;
            }
            _ => {}
        }
        Ok(pieces)
    }

    /// Runs the next draft, of which at most `left` tokens are wanted.
    async fn begin(&mut self, sequence: &mut Sequence, start: usize, left: usize) -> Result<Step> {
        let length = sequence.tokens.len();
        if sequence.output_of != length {
            sequence.rewind_last()?;
        }
        let room = sequence.model.max_context.saturating_sub(sequence.position(length));
        let most = (left - 1).min(MOST_DRAFTED).min(room);
        let mut draft = if most > 0 { self.draft.guess(&sequence.tokens).await? } else { Vec::new() };
        draft.truncate(most);
        let mut masks = Vec::new();
        if let Some(guide) = &mut self.guide {
            let (allowed, found) = guide.allowed(&sequence.tokens[start..], &draft)?;
            draft.truncate(allowed);
            masks = found;
        }
        sequence.compute(length - 1, &[])?;
        let checks = self.check(sequence, &draft, &masks)?;
        Ok(Step { draft, checks })
    }

    /// Runs a draft, and asks what of it is right. `masks`: what may come at each output, or none.
    fn check(&mut self, sequence: &mut Sequence, draft: &[u32], masks: &[String]) -> Result<Checks> {
        let (queue, count) = (sequence.queue.number, draft.len() + 1);
        if self.embeds.len() < 2 * count {
            let missing = 2 * count - self.embeds.len();
            let (first, _) = sequence.model.allocate_embeds(queue, missing, missing)?;
            self.embeds.extend(first..first + missing as u32);
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
        if masks.is_empty() {
            let number = raw::fused::verify(queue, &ranges(outputs.into_iter()), draft, self.handle.0)?;
            return Ok(Checks::Verified(HostFuture::new(number, raw::fused::await_verified)));
        }
        let samples = outputs.iter().zip(masks).map(|(output, mask)| {
            let number = raw::fused::sample(queue, *output, self.handle.0, &[], mask, 0)?;
            Ok(HostFuture::new(number, raw::core::await_number))
        });
        Ok(Checks::Sampled(samples.collect::<Result<_>>()?, Vec::new()))
    }

    /// Gives everything back. The sequence has keys of its tokens only.
    pub fn close(&mut self, sequence: &mut Sequence) -> Result<()> {
        self.step = None;
        if !self.embeds.is_empty() {
            raw::allocate::dealloc(sequence.queue.number, Memory::Emb, &ranges(self.embeds.drain(..)))?;
        }
        sequence.rewind(sequence.tokens.len())
    }
}
