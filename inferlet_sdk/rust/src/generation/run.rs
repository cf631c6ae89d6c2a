//! A decode run of a sequence: the worker goes on by itself, and the sequence takes tokens as they come.
//!
//! While a run lives, the sequence counts all of its tokens as computed. When it ends, that is set right: all tokens of
//! a run but the last one have keys.

use super::guide::{Guide, WHERE_IT_PAYS};
use super::sampler::{Handle, Sampler};
use crate::context::sequence::Sequence;
use crate::error::{Code, Result};
use crate::json::Json;
use crate::raw;
use crate::task::{sleep, Ready};
use std::rc::Rc;
use std::time::Duration;

/// Most steps of a run.
const STEPS: usize = 512;
/// Most steps of a run where others use the queue, because their commands come after the run.
const STEPS_OF_SHARED: usize = 16;
/// Most stop tokens of a run.
pub(crate) const MOST_STOPS: usize = 64;
/// Milliseconds of the longest pause before a run is issued again for which the worker was not ready.
const LONGEST_PAUSE: u64 = 4000;

/// Tokens, and the text that each completes.
#[derive(Default)]
pub(crate) struct Pieces {
    pub tokens: Vec<u32>,
    pub texts: Vec<String>,
    /// Whether nothing can follow.
    pub complete: bool,
}

impl Pieces {
    pub fn one(token: u32, detokenizer: u32) -> Result<Self> {
        let text = raw::tokenize::push_tokens(detokenizer, &[token])?;
        Ok(Pieces { tokens: vec![token], texts: vec![text], complete: false })
    }
}

/// Tokens from a sampler on the worker, by decode runs.
pub(crate) struct Runs {
    sampler: Sampler,
    handle: Handle,
    stop: Vec<u32>,
    most: usize,
    run: Option<Run>,
    following: Option<Following>,
    guide: Option<Guide>,
}

/// How the host follows the text of a run: strings that end it, and whether it goes to the client.
#[derive(Clone)]
pub(crate) struct Following {
    pub stop: Vec<String>,
    pub send: bool,
}

struct Run {
    number: u32,
    position: usize,
    steps: usize,
    taken: usize,
    is_watched: bool,
    may_exceed: bool, // more tokens may have run than are taken
}

impl Runs {
    /// `most`: steps of a run.
    pub fn new(sampler: Sampler, handle: Handle, stop: Vec<u32>, most: usize, guide: Option<Guide>) -> Self {
        Runs { sampler, handle, stop, most, run: None, following: None, guide }
    }

    /// Whether it keeps to a grammar.
    pub fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// From now on the host follows the text of each run, which comes at its end; one that it follows already goes on
    /// so. Whether the host sends the text. `left`: tokens that may come; `held`: text before them that may be the
    /// beginning of a stop string.
    pub fn follow(&mut self, following: Following, detokenizer: u32, left: usize, held: &str) -> Result<bool> {
        if !self.run.as_ref().map_or(false, |run| run.is_watched) {
            self.following = Some(following);
            self.watch(detokenizer, left, held)?;
        }
        Ok(self.following.as_ref().map_or(false, |following| following.send))
    }

    /// Has the host follow the run that is under way, if it shall.
    fn watch(&mut self, detokenizer: u32, left: usize, held: &str) -> Result<()> {
        if let (Some(run), Some(following)) = (&mut self.run, &self.following) {
            let stop = following.stop.iter().cloned().map(Json::Text).collect();
            let options = Json::object([
                ("stop", Json::List(stop)),
                ("send", Json::Bool(following.send)),
                ("held", Json::from(held)),
                ("more", Json::Bool(left > run.steps - run.taken)),
            ]);
            raw::fused::watch_run(run.number, detokenizer, &options.to_string())?;
            run.is_watched = true;
            run.may_exceed = !following.stop.is_empty();
        }
        Ok(())
    }

    /// What has come, at most `left` tokens; `start`: tokens of the sequence before the generation.
    pub async fn next(
        &mut self,
        sequence: &mut Sequence,
        detokenizer: u32,
        start: usize,
        left: usize,
        held: &str,
    ) -> Result<Pieces> {
        let mut pause = 2;
        let forced = self.guide.as_mut().map(|guide| guide.forced_first(left, detokenizer));
        if let Some(pieces) = forced.transpose()?.flatten() {
            return Ok(pieces);
        }
        loop {
            if self.run.is_none() {
                self.issue(sequence, detokenizer, start, left, held)?;
            }
            let number = self.run.as_ref().expect("it was issued").number;
            Ready(number).await;
            match raw::fused::take_run(number, detokenizer) {
                Ok((tokens, texts, over, _)) => {
                    let run = self.run.as_mut().expect("it is there");
                    run.taken += tokens.len();
                    let mut pieces = Pieces { tokens, texts, complete: false };
                    if over {
                        self.settle(sequence)?;
                        self.go_on(&sequence.tokens[start..], &mut pieces, left, detokenizer)?;
                    }
                    return Ok(pieces);
                }
                Err(error) => {
                    self.cancel(sequence)?;
                    if error.code != Code::Busy || pause > LONGEST_PAUSE {
                        return Err(error);
                    }
                }
            }
            sleep(Duration::from_millis(pause)).await?;
            pause *= 2;
        }
    }

    fn issue(
        &mut self,
        sequence: &mut Sequence,
        detokenizer: u32,
        start: usize,
        left: usize,
        held: &str,
    ) -> Result<()> {
        sequence.flush()?;
        let matcher = self.guide.as_mut().map_or(Ok(0), |guide| guide.at(&sequence.tokens[start..]))?;
        let (queue, position) = (sequence.queue.number, sequence.computed);
        let is_alone = Rc::strong_count(&sequence.queue) == 2; // the model's list has it, too
        let most = left.min(self.most).min(if is_alone { STEPS } else { STEPS_OF_SHARED });
        let output = sequence.own_output(true)?;
        let input = sequence.queue.inputs(&sequence.model, 1)?[0];
        let room = sequence.pages.reserve_for_run(queue, position, position + most - 1)?;
        let steps = most.min(room + 1 - position);
        let pages = sequence.pages.output(position);
        let options = self.options(sequence);
        let stop = &self.stop[..self.stop.len().min(MOST_STOPS)];
        let place = sequence.position(position) as u32;
        let context = sequence.pages.context();
        let issued = raw::fused::decode(
            queue,
            output,
            self.handle.0,
            input,
            place,
            context,
            &pages,
            steps as u32,
            stop,
            &options,
            matcher,
            WHERE_IT_PAYS,
        );
        let number = match issued {
            Ok(number) => number,
            Err(error) => {
                sequence.pages.settle(position);
                return Err(error);
            }
        };
        sequence.computed = position + steps - 1;
        sequence.output_of = 0;
        self.run = Some(Run { number, position, steps, taken: 0, is_watched: false, may_exceed: false });
        self.watch(detokenizer, left, held)
    }

    /// Behind the pieces of a run that is over come tokens that the grammar forces, unless nothing comes behind these.
    fn go_on(&mut self, before: &[u32], pieces: &mut Pieces, left: usize, detokenizer: u32) -> Result<()> {
        let is_stopped = pieces.tokens.last().map_or(false, |last| self.stop.contains(last));
        match &mut self.guide {
            Some(guide) if !is_stopped && pieces.tokens.len() < left => guide.go_on(before, pieces, left, detokenizer),
            _ => Ok(()),
        }
    }

    fn options(&self, sequence: &Sequence) -> String {
        let mut options = Vec::new();
        if !sequence.adapter.is_empty() {
            options.push(("adapter", Json::from(sequence.adapter.as_str())));
        }
        if self.sampler.looks_back() {
            let recent = self.sampler.recent(&sequence.tokens).iter().map(|token| Json::from(*token)).collect();
            options.push(("recent", Json::List(recent)));
            options.push(("window", Json::from(self.sampler.window)));
        }
        if options.is_empty() {
            return String::new();
        }
        Json::object(options).to_string()
    }

    /// Ends the run, and drops what it computed beyond what was taken.
    pub fn cancel(&mut self, sequence: &mut Sequence) -> Result<()> {
        if let Some(run) = &self.run {
            let _ = raw::core::cancel(run.number); // it is over, and its value was an error
            self.run.as_mut().expect("it is there").may_exceed = true;
            self.settle(sequence)?;
        }
        Ok(())
    }

    /// Keeps what belongs to tokens that were taken. A stop string that the host found may have come too late to keep
    /// further steps from being run.
    fn settle(&mut self, sequence: &mut Sequence) -> Result<()> {
        if let Some(run) = self.run.take() {
            let kept = run.position + run.taken.max(1) - 1;
            sequence.pages.settle(kept);
            sequence.model.give_back();
            if run.may_exceed {
                sequence.rewind(kept)?;
            } else {
                sequence.computed = kept;
            }
        }
        Ok(())
    }
}
