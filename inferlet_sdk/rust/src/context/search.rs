//! Choosing among several continuations of a context.

use crate::context::model::usage;
use crate::context::sequence::Sequence;
use crate::context::Context;
use crate::error::{Code, Error, Result};
use crate::generation::sampler::Sampler;
use crate::generation::stop::StopReason;
use crate::task::try_join_all;

/// Continuations for whose pages nobody asks what the limit is.
const MANY: usize = 128;
/// Samples of a continuation: each has a sampler and a detokenizer, and an inferlet may have 4096 of such.
const MOST_SAMPLES: usize = 2000;

/// A continuation of a context.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// The mean log-probability of its tokens, the greater the better.
    pub score: f64,
    /// Why it ended.
    pub reason: StopReason,
}

/// A continuation with the branch that holds it.
struct Beam {
    branch: Sequence,
    logprobs: Vec<f64>,
    reason: StopReason,
}

/// A beam, by its number, with one token more.
struct Step {
    beam: usize,
    token: u32,
    logprob: f64,
    total: f64,
}

fn mean(logprobs: &[f64]) -> f64 {
    logprobs.iter().sum::<f64>() / logprobs.len().max(1) as f64
}

/// An error if the inferlet may not have the pages of so many continuations. One token needs none.
fn check_count(count: usize, length: usize, name: &str) -> Result<()> {
    if count <= MANY || length <= 1 {
        return Ok(());
    }
    let most = usage("max_pages");
    if count > most {
        let what = format!("each of {} continuations takes a page, and an inferlet may have {}", count, most);
        return Err(Error::with(Code::QuotaExceeded, format!("{}: {}: ask for fewer", name, what)));
    }
    Ok(())
}

/// The order of two scores, the greater one first; NaN is behind all others.
fn from_best(one: f64, other: f64) -> std::cmp::Ordering {
    let rank = |score: f64| (!score.is_nan(), score);
    rank(other).partial_cmp(&rank(one)).unwrap_or(std::cmp::Ordering::Equal)
}

impl Context {
    /// The most likely continuations by beam search, the best one first, at most `width`, each of at most `length`
    /// tokens. Appends the best one. A stop token of the model ends a beam, counts for its score, and is not kept.
    pub async fn beam(&mut self, width: usize, length: usize) -> Result<Vec<Hypothesis>> {
        if width == 0 {
            return Err(Error::invalid("width: 0 beams find nothing: give 1 or more"));
        }
        check_count(width, length, "width")?;
        self.settle().await?;
        let start = self.sequence.tokens.len();
        let stop = self.sequence.model.stop_tokens.clone();
        let room = self.sequence.room()?;
        let mut live = vec![Beam { branch: self.sequence.fork()?, logprobs: Vec::new(), reason: StopReason::Length }];
        let mut ended: Vec<Beam> = Vec::new();
        for _ in 0..length.min(room) {
            let steps = steps(&mut live, width, &stop).await?;
            let (going, done) = take(live, steps, width, &stop)?;
            live = going;
            ended.extend(done);
            ended = best(ended, width);
            let bound = live.iter().map(|beam| mean(&beam.logprobs)).fold(f64::NEG_INFINITY, f64::max);
            if live.is_empty() || (ended.len() == width && mean(&ended[width - 1].logprobs) >= bound) {
                break;
            }
        }
        ended.append(&mut live);
        let mut found = Vec::new();
        let mut kept = None;
        for beam in best(ended, width) {
            let tokens = beam.branch.tokens[start..].to_vec();
            let text = if tokens.is_empty() { String::new() } else { beam.branch.model.detokenize(&tokens)? };
            found.push(Hypothesis { tokens, text, score: mean(&beam.logprobs), reason: beam.reason });
            kept = kept.or(Some(beam.branch));
        }
        if let Some(best) = kept {
            self.sequence = best;
        }
        Ok(found)
    }

    /// Samples `count` continuations at once and appends the best one, by the score that a function of its text gives.
    /// All of them, the best one first. A seed of the sampler is that of the first one; the others have the next ones.
    pub async fn best_of(
        &mut self,
        count: usize,
        max_tokens: usize,
        sampler: &Sampler,
        score: impl Fn(&str) -> f64,
    ) -> Result<Vec<Hypothesis>> {
        if !(1..=MOST_SAMPLES).contains(&count) {
            let what = format!("count: best_of takes 1 to {} continuations, not {}", MOST_SAMPLES, count);
            return Err(Error::invalid(what));
        }
        check_count(count, max_tokens, "count")?;
        self.take_noted()?;
        self.sequence.room()?;
        self.settle().await?;
        let mut branches = Vec::new();
        for number in 0..count as u64 {
            let seed = sampler.seed.map(|seed| seed.wrapping_add(number));
            branches.push((self.fork()?, Sampler { seed, ..sampler.clone() }));
        }
        let all = branches.into_iter().map(|(mut branch, sampler)| async {
            let mut generation = branch.generate(max_tokens).sampler(sampler);
            let text = generation.whole(None).await?;
            let tokens = generation.tokens().to_vec();
            let reason = generation.stop_reason().unwrap_or(StopReason::Ended);
            drop(generation);
            Ok::<_, Error>((Hypothesis { tokens, score: score(&text), text, reason }, branch))
        });
        let mut found = try_join_all(all).await?;
        found.sort_by(|(one, _), (other, _)| from_best(one.score, other.score));
        let mut hypotheses = Vec::new();
        let mut kept = None;
        for (hypothesis, branch) in found {
            hypotheses.push(hypothesis);
            kept = kept.or(Some(branch));
        }
        if let Some(best) = kept {
            self.sequence = best.sequence;
        }
        Ok(hypotheses)
    }

    /// The log-probability of each token of a continuation, without appending it.
    pub async fn score(&mut self, continuation: &[u32]) -> Result<Vec<f32>> {
        self.settle().await?;
        self.sequence.fork()?.append_scored(continuation).await
    }

    /// The number of the most likely of several texts, which it appends: by the probability of all their tokens
    /// together, or, with `mean`, by that of a token on average.
    pub async fn select(&mut self, options: &[&str], mean: bool) -> Result<usize> {
        self.settle().await?;
        let mut branches = Vec::new();
        for option in options {
            branches.push((self.sequence.fork()?, self.model().tokenize(option, true)?));
        }
        let scored = branches.iter_mut().map(|(branch, tokens)| branch.append_scored(tokens));
        let (mut best, mut most) = (None, f64::NEG_INFINITY);
        for (number, scores) in try_join_all(scored).await?.into_iter().enumerate() {
            let scores: Vec<f64> = scores.into_iter().map(f64::from).collect();
            let score = if mean { self::mean(&scores) } else { scores.iter().sum() };
            if best.is_none() || score > most {
                (best, most) = (Some(number), score);
            }
        }
        let number = best.ok_or_else(|| Error::invalid("options: there is nothing to select from"))?;
        let (_, tokens) = branches.swap_remove(number);
        self.fill_tokens(&tokens)?;
        Ok(number)
    }
}

/// The most likely continuations by one token, the best one first.
async fn steps(live: &mut [Beam], width: usize, stop: &[u32]) -> Result<Vec<Step>> {
    let k = width.saturating_mul(2).saturating_add(stop.len()).min(live[0].branch.model.max_dist);
    let dists = try_join_all(live.iter_mut().map(|beam| beam.branch.next_dist(k, 1.0))).await?;
    let mut steps = Vec::new();
    for (number, (beam, dist)) in live.iter().zip(&dists).enumerate() {
        let before: f64 = beam.logprobs.iter().sum();
        for (token, probability) in dist.tokens.iter().zip(&dist.probabilities).filter(|(_, one)| **one > 0.0) {
            let logprob = f64::from(*probability).ln();
            steps.push(Step { beam: number, token: *token, logprob, total: before + logprob });
        }
    }
    steps.sort_by(|one, other| from_best(one.total, other.total));
    Ok(steps)
}

/// The `width` best steps that go on, and the beams that end with one of the `width` best steps of all. The first step
/// that goes on from a beam takes its branch over, so only where beams part are there forks.
fn take(mut live: Vec<Beam>, steps: Vec<Step>, width: usize, stop: &[u32]) -> Result<(Vec<Beam>, Vec<Beam>)> {
    let mut done = Vec::new();
    for step in steps.iter().take(width).filter(|step| stop.contains(&step.token)) {
        let beam = &mut live[step.beam];
        let logprobs = [&beam.logprobs[..], &[step.logprob]].concat();
        done.push(Beam { branch: beam.branch.fork()?, logprobs, reason: StopReason::Stop });
    }
    let going: Vec<Step> = steps.into_iter().filter(|step| !stop.contains(&step.token)).take(width).collect();
    let mut live: Vec<(Option<Sequence>, Vec<f64>)> =
        live.into_iter().map(|beam| (Some(beam.branch), beam.logprobs)).collect();
    let mut beams = Vec::new();
    for (place, step) in going.iter().enumerate() {
        let is_last = going[place + 1..].iter().all(|later| later.beam != step.beam);
        let (whole, logprobs) = &mut live[step.beam];
        let mut branch = whole.take().expect("only its last step leaves nothing");
        if !is_last {
            *whole = Some(branch.fork()?); // shares the output; who writes first behind a page gets a copy
        }
        branch.tokens.push(step.token);
        beams.push(Beam { branch, logprobs: [&logprobs[..], &[step.logprob]].concat(), reason: StopReason::Length });
    }
    Ok((beams, done))
}

/// The `width` best ones, in order.
fn best(mut beams: Vec<Beam>, width: usize) -> Vec<Beam> {
    beams.sort_by(|one, other| from_best(mean(&one.logprobs), mean(&other.logprobs)));
    beams.truncate(width);
    beams
}
