//! Equal beginnings of long prompts are run once for all inferlets of a user.
//!
//! At a model that keeps a state of each text, others can only go on where a state was left. So a prompt runs up to the
//! end of its first part, that of all parts but the last one, and its own, each in whole pages, and is offered there with
//! the state; also where it parts from a text of others that have left no state there. The exports have these states,
//! and the sequence gives up its own share as it goes on.

use crate::base64::encode_numbers;
use crate::context::sequence::{Sequence, LEAST_SHARED};
use crate::error::Result;
use crate::json::Json;
use crate::raw;
use crate::task::HostFuture;

/// Takes over what is there of the keys of a long prompt, runs the rest of it, and offers its full pages. Does nothing to
/// a sequence that has keys.
pub(crate) async fn share_prefix(sequence: &mut Sequence) -> Result<()> {
    if sequence.computed > 0 || sequence.tokens.len() < LEAST_SHARED || !can_share(sequence) {
        return Ok(());
    }
    let (queue, size, has_states) = (sequence.queue.number, sequence.model.page_size, sequence.model.has_states);
    let asked = &sequence.tokens[..sequence.tokens.len() - 1];
    let (length, tokens) = (asked.len() / size * size, encode_numbers(asked));
    let number = raw::exports::import_prefix(queue, &tokens, &sequence.adapter)?;
    let import = HostFuture::new(number, raw::exports::await_prefix);
    let known = if has_states { known_prefix(sequence, &tokens).await? } else { 0 };
    let (first, count) = import.await.unwrap_or((0, 0)); // an error: there is no room for what was found
    if count > 0 {
        sequence.pages.adopt(first, count);
        let found = count as usize * size;
        sequence.computed = if has_states { sequence.find_state(found)? } else { found };
    }
    if has_states {
        return run_with_states(sequence, length, known * size);
    }
    if sequence.computed < length {
        sequence.flush()?;
        offer(sequence, length)?;
    }
    Ok(())
}

/// How many first pages of a prompt others have offered, whether states are there or not.
async fn known_prefix(sequence: &Sequence, tokens: &str) -> Result<usize> {
    let number = raw::exports::pin_exports(sequence.queue.number, "", tokens, &sequence.adapter, 0)?;
    let found = Json::parse(&HostFuture::new(number, raw::core::await_text).await?)?;
    Ok(found.get("known").and_then(Json::as_i64).unwrap_or(0) as usize)
}

/// Runs all of the prompt, and offers of its first `length` tokens those up to where parts of it end, and to where it
/// parts from others, at `known`.
fn run_with_states(sequence: &mut Sequence, length: usize, known: usize) -> Result<()> {
    let (size, mut before) = (sequence.model.page_size, sequence.computed);
    let parts = sequence.ends.first().into_iter().chain(sequence.ends.last());
    let mut ends: Vec<usize> = parts.chain([&known, &length]).map(|end| end / size * size).collect();
    ends.sort_unstable();
    for end in ends {
        if end > before && end >= LEAST_SHARED && end <= length {
            sequence.compute(end, &[])?;
            offer(sequence, end)?;
            give_up(sequence, before)?;
            before = end;
        }
    }
    sequence.flush()?;
    give_up(sequence, before)
}

/// The state behind the first tokens is left to others.
fn give_up(sequence: &mut Sequence, length: usize) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    sequence.drop_state(length)
}

/// Offers all full pages of a sequence, and at a model with states all tokens that have run, if a state is behind them.
/// All but the last one run before, if they have not, or if that state was lost: that of a reply that a stop string has
/// cut. Does nothing to a sequence that is short, or not shared.
pub(crate) fn keep_pages(sequence: &mut Sequence) -> Result<()> {
    let run = sequence.computed.max(sequence.tokens.len().saturating_sub(1));
    let count = run / sequence.model.page_size * sequence.model.page_size;
    if count < LEAST_SHARED || sequence.pages.has_dropped() || !can_share(sequence) {
        return Ok(());
    }
    sequence.compute(run, &[])?;
    if !sequence.model.has_states {
        return offer(sequence, count);
    }
    if sequence.find_state(run)? == run {
        sequence.keep_state()?;
        offer(sequence, run)?;
    }
    Ok(())
}

/// Offers the pages of the first `count` tokens. Nobody waits for that, and it happens even if the inferlet ends at once.
fn offer(sequence: &mut Sequence, count: usize) -> Result<()> {
    let (pages, tokens) = (sequence.pages.seal(count), encode_numbers(&sequence.tokens[..count]));
    let offered = raw::exports::export_prefix(sequence.queue.number, &pages, &tokens, &sequence.adapter)?;
    raw::core::cancel(offered)
}

fn can_share(sequence: &Sequence) -> bool {
    sequence.shares && sequence.offset == 0
}
