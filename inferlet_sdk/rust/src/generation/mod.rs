//! Generating text.
//!
//! What was computed past a stop is dropped: afterwards the context holds exactly the tokens that were emitted, and the
//! same tokens come out however they were made.

pub mod dist;
pub mod draft;
mod guide;
pub(crate) mod run;
pub mod sampler;
pub mod stop;

use crate::args::Args;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::raw;
use crate::task::HostFuture;
use dist::Dist;
use draft::{Draft, Drafted};
use guide::Guide;
use run::{Following, Pieces, Runs, MOST_STOPS};
use sampler::{Choose, Handle, Sampler};
use stop::{StopReason, TextFilter};

/// Stop strings for which the host can look, and characters of all of them.
const MOST_STRINGS: usize = 16;
const MOST_CHARACTERS: usize = 1024;
/// Most bytes of a character, and so most tokens.
const CHARACTER: usize = 4;

/// A continuation of a context: set what it needs, then take its pieces by `next`, or all of it by `text`.
///
/// A piece is the text of a token, or of several if the program is slower than the model. It ends at a stop token of
/// the model or a stop string, after the most tokens, or when the model's context is full. Dropped before, it keeps
/// what was taken.
#[must_use = "a generation does nothing until its text is asked for"]
pub struct Generation<'a> {
    context: &'a mut Context,
    options: Options,
    state: Option<State>,
    start: usize,
    left: usize,
    completes: bool, // whether the last token has completed a text
    reason: Option<StopReason>,
}

struct Options {
    max_tokens: Option<usize>,
    sampler: Sampler,
    choose: Option<Choose>,
    stop: Vec<String>,
    stop_tokens: Vec<u32>,
    ignores_stop_tokens: bool,
    include_stop: bool,
    draft: Option<Box<dyn Draft>>,
    grammar: Option<(&'static str, String)>,
    run_ahead: bool,
}

impl Options {
    /// Refuses what cannot be, or does not go together.
    fn check(&self) -> Result<()> {
        let wrong = if self.grammar.is_some() && self.choose.is_some() {
            "choose: the host cannot keep a function to a grammar: choose among what `raw::grammar::grammar_mask` allows \
             in it"
        } else if self.stop.iter().any(String::is_empty) {
            "a stop string must not be empty"
        } else if self.draft.is_some() && self.choose.is_some() {
            "draft: drafts need a sampler of the host"
        } else if self.draft.is_some() && self.sampler.looks_back() {
            "draft: a sampler with penalties cannot check a draft: leave one of them out"
        } else {
            return Ok(());
        };
        Err(Error::invalid(wrong))
    }
}

/// What it holds while it goes on.
struct State {
    source: Source,
    filter: Option<TextFilter>,
    stops: Vec<u32>,
    detokenizer: Handle,
}

enum Source {
    Runs(Runs),
    Sampled(Sampler, Handle, Option<HostFuture<u32>>), // the token that is under way stays the next one
    Drafted(Drafted),
    Chosen(Choose),
}

impl<'a> Generation<'a> {
    pub(crate) fn new(context: &'a mut Context, max_tokens: Option<usize>) -> Self {
        let options = Options {
            max_tokens,
            sampler: Sampler::greedy(),
            choose: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignores_stop_tokens: false,
            include_stop: false,
            draft: None,
            grammar: None,
            run_ahead: true,
        };
        Generation { context, options, state: None, start: 0, left: 0, completes: true, reason: None }
    }

    /// How tokens are chosen; greedy unless it is told.
    pub fn sampler(mut self, sampler: Sampler) -> Self {
        self.options.sampler = sampler;
        self
    }

    /// A function of the program chooses each token, of the `k` most probable ones.
    pub fn choose(mut self, k: usize, temperature: f32, choose: impl FnMut(&Dist) -> u32 + 'static) -> Self {
        self.options.choose = Some(Choose { choose: Box::new(choose), k, temperature });
        self
    }

    /// Ends before this string, which is neither emitted nor kept; it may be called several times.
    pub fn stop(mut self, string: impl Into<String>) -> Self {
        self.options.stop.push(string.into());
        self
    }

    /// Ends at this token, too.
    pub fn stop_token(mut self, token: u32) -> Self {
        self.options.stop_tokens.push(token);
        self
    }

    /// Treats the model's own stop tokens like any other tokens.
    pub fn ignore_stop_tokens(mut self) -> Self {
        self.options.ignores_stop_tokens = true;
        self
    }

    /// What ends the text belongs to it.
    pub fn include_stop(mut self) -> Self {
        self.options.include_stop = true;
        self
    }

    /// What guesses the next tokens, such as `prompt_lookup(3, 8)`; the text is the same.
    pub fn draft(mut self, draft: impl Draft + 'static) -> Self {
        self.options.draft = Some(Box::new(draft));
        self
    }

    /// Keeps to a JSON schema.
    pub fn schema(self, schema: impl Into<String>) -> Self {
        self.grammar("json-schema", schema)
    }

    /// Keeps to a regular expression, which matches all of the text.
    pub fn regex(self, pattern: impl Into<String>) -> Self {
        self.grammar("regex", pattern)
    }

    /// Keeps to a grammar in the syntax of Lark.
    pub fn lark(self, grammar: impl Into<String>) -> Self {
        self.grammar("lark", grammar)
    }

    fn grammar(mut self, kind: &'static str, text: impl Into<String>) -> Self {
        self.options.grammar = Some((kind, text.into()));
        self
    }

    /// Makes each token when it is asked for, and none ahead.
    pub fn step_by_step(mut self) -> Self {
        self.options.run_ahead = false;
        self
    }

    /// The tokens that were emitted.
    pub fn tokens(&self) -> &[u32] {
        if self.state.is_none() && self.reason.is_none() {
            return &[]; // it has not begun
        }
        &self.context.sequence.tokens[self.start..]
    }

    /// Why it has ended; None while it goes on.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.reason
    }

    /// The next piece of text; None at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        if self.state.is_none() && self.reason.is_none() {
            self.begin().await?;
        }
        while self.reason.is_none() {
            let piece = if self.left == 0 {
                self.finish(StopReason::Length)?
            } else {
                let pieces = self.pieces().await?;
                let mut piece = self.take_in(&pieces)?;
                if pieces.complete && self.reason.is_none() {
                    piece += &self.finish(StopReason::Stop)?;
                }
                piece
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// All of the text, or what is left of it.
    pub async fn text(mut self) -> Result<String> {
        self.whole(None).await
    }

    pub(crate) async fn whole(&mut self, to: Option<&Args>) -> Result<String> {
        if self.state.is_none() && self.reason.is_none() {
            self.begin().await?;
        }
        let is_sent = self.follow(to.is_some())?;
        let mut text = String::new();
        while let Some(piece) = self.next().await? {
            if let (Some(args), false) = (to, is_sent) {
                args.send(&piece).await?;
            }
            text += &piece;
        }
        Ok(text)
    }

    /// Leaves the text to the host, if nothing else has to look at it. Whether the host sends it.
    fn follow(&mut self, send: bool) -> Result<bool> {
        let characters: usize = self.options.stop.iter().map(|one| one.chars().count()).sum();
        let strings = !self.options.stop.is_empty();
        let fits = self.options.stop.len() <= MOST_STRINGS && characters <= MOST_CHARACTERS;
        match &mut self.state {
            Some(State { source: Source::Runs(runs), filter, stops, detokenizer })
                if fits
                    && stops.len() <= MOST_STOPS
                    && !self.options.include_stop
                    && self.options.run_ahead
                    && !(runs.is_guided() && (strings || send)) =>
            // the host does not see the tokens that are forced
            {
                let held = filter.as_ref().map_or("", TextFilter::held);
                let following = Following { stop: self.options.stop.clone(), send };
                runs.follow(following, detokenizer.0, self.left, held)
            }
            _ => Ok(false),
        }
    }

    async fn begin(&mut self) -> Result<()> {
        self.context.take_noted()?;
        let room = self.context.sequence.room()?;
        self.options.check()?;
        self.left = self.options.max_tokens.map_or(room, |most| most.min(room));
        self.start = self.context.sequence.tokens.len();
        if self.left > 0 {
            self.context.settle().await?;
        }
        let options = &mut self.options;
        let sequence = &mut self.context.sequence;
        if sequence.model.has_states && self.left > 0 {
            sequence.flush()?;
            sequence.hold_state()?; // what comes can be dropped
        }
        let mut stops = options.stop_tokens.clone();
        if !options.ignores_stop_tokens {
            stops.extend_from_slice(&sequence.model.stop_tokens);
        }
        stops.sort_unstable();
        let queue = sequence.queue.number;
        let detokenizer = Handle(raw::tokenize::create_detokenizer(queue)?);
        if sequence.half == Some(self.start) {
            let before = &sequence.tokens[self.start.saturating_sub(CHARACTER - 1)..];
            raw::tokenize::push_tokens(detokenizer.0, before)?; // they may have begun a character that is completed
        }
        let guide = match &options.grammar {
            Some((kind, text)) if self.left > 0 => Some(Guide::open(queue, kind, text).await?),
            _ => None,
        };
        let source = if let Some(choose) = options.choose.take() {
            Source::Chosen(choose)
        } else {
            let (sampler, handle) = (options.sampler.clone(), options.sampler.create()?);
            match options.draft.take() {
                Some(draft) => Source::Drafted(Drafted::new(draft, handle, stops.clone(), guide)),
                None if options.run_ahead || guide.is_some() => {
                    let most = if options.run_ahead { usize::MAX } else { 1 };
                    Source::Runs(Runs::new(sampler, handle, stops.clone(), most, guide))
                }
                None => Source::Sampled(sampler, handle, None),
            }
        };
        let strings = options.stop.clone();
        let filter = (!strings.is_empty()).then(|| TextFilter::new(strings, options.include_stop));
        self.state = Some(State { source, filter, stops, detokenizer });
        Ok(())
    }

    async fn pieces(&mut self) -> Result<Pieces> {
        let (sequence, left) = (&mut self.context.sequence, self.left);
        let state = self.state.as_mut().expect("it goes on");
        let detokenizer = state.detokenizer.0;
        match &mut state.source {
            Source::Runs(runs) => {
                let held = state.filter.as_ref().map_or("", TextFilter::held);
                runs.next(sequence, detokenizer, self.start, left, held).await
            }
            Source::Sampled(sampler, handle, asked) => {
                if asked.is_none() {
                    *asked = Some(sequence.sample(sampler, handle.0)?);
                }
                let token = asked.as_mut().expect("it was asked for").await;
                *asked = None;
                Pieces::one(token?, detokenizer)
            }
            Source::Drafted(drafted) => drafted.next(sequence, detokenizer, self.start, left).await,
            Source::Chosen(choose) => {
                let dist = sequence.next_dist(choose.k, choose.temperature).await?;
                let token = (choose.choose)(&dist);
                Pieces::one(token, detokenizer)
            }
        }
    }

    /// Takes tokens into the context, up to the one that ends the generation; gives the text to emit.
    fn take_in(&mut self, pieces: &Pieces) -> Result<String> {
        let mut emitted = String::new();
        for (token, text) in pieces.tokens.iter().zip(&pieces.texts) {
            let state = self.state.as_mut().expect("it goes on");
            let stops = state.stops.contains(token);
            if stops && !self.options.include_stop {
                emitted += &self.finish(StopReason::Stop)?;
                break;
            }
            self.context.sequence.tokens.push(*token);
            self.left -= 1;
            self.completes = !text.is_empty();
            let mut is_cut = false;
            match &mut state.filter {
                Some(filter) => {
                    emitted += &filter.push(text);
                    is_cut = filter.cut.is_some();
                }
                None => emitted += text,
            }
            if stops || is_cut {
                emitted += &self.finish(StopReason::Stop)?;
                break;
            }
            if self.left == 0 {
                emitted += &self.finish(StopReason::Length)?;
                break;
            }
        }
        Ok(emitted)
    }

    /// Ends the generation; gives the text that was held back.
    fn finish(&mut self, reason: StopReason) -> Result<String> {
        self.reason = Some(reason);
        let mut state = match self.state.take() {
            Some(state) => state,
            None => return Ok(String::new()),
        };
        let sequence = &mut self.context.sequence;
        match &mut state.source {
            Source::Runs(runs) => {
                runs.cancel(sequence)?;
                sequence.rewind(sequence.tokens.len())?;
            }
            Source::Drafted(drafted) => drafted.close(sequence)?,
            Source::Sampled(..) | Source::Chosen(_) => {}
        }
        let mut rest = String::new();
        if let Some(filter) = &mut state.filter {
            rest = filter.rest();
            if filter.cut.is_some() {
                let (start, all) = (self.start, &sequence);
                let (count, part) = filter.kept(|count| {
                    let last = &all.tokens[start + count.saturating_sub(CHARACTER)..start + count];
                    Ok(!all.model.detokenize(last)?.ends_with('\u{fffd}'))
                })?;
                sequence.truncate(start + count)?;
                if !part.is_empty() {
                    let tokens = sequence.model.tokenize(part, false)?;
                    sequence.append(&tokens);
                }
            }
        }
        if !self.completes {
            sequence.half = Some(sequence.tokens.len());
        }
        sequence.let_go_drafted()?;
        Ok(rest)
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if self.reason.is_none() {
            let _ = self.finish(StopReason::Ended);
        }
    }
}
