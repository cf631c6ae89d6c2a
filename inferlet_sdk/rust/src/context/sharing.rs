//! Contexts behind each other, contexts that are exported under a name, and prompts that begin alike.

use crate::base64::{decode_numbers, encode_numbers};
use crate::context::model::{ranges, Model};
use crate::context::sequence::Sequence;
use crate::context::Context;
use crate::error::{Code, Error, Result};
use crate::json::Json;
use crate::raw;
use crate::task::HostFuture;

/// The name of the export of a context with an adapter ("": none), as the Python SDK has it.
fn full_name(name: &str, adapter: &str) -> String {
    if adapter.is_empty() {
        return name.to_string();
    }
    format!("{} (adapter {})", name, adapter)
}

/// Least tokens of a prompt that is shared: what is shorter runs faster than it is found.
const LEAST_SHARED: usize = 256;

/// Takes over what other inferlets of the user have of a long prompt's keys, in full pages, or runs the prompt and offers
/// its pages to them. Does nothing to a sequence that has keys.
pub(super) async fn share_prefix(sequence: &mut Sequence) -> Result<()> {
    let is_long = sequence.tokens.len() >= LEAST_SHARED;
    if !is_long || sequence.computed > 0 || !sequence.shares || sequence.offset != 0 || sequence.model.has_states {
        return Ok(());
    }
    let (queue, size) = (sequence.queue.number, sequence.model.page_size);
    let length = (sequence.tokens.len() - 1) / size * size;
    let tokens = encode_numbers(&sequence.tokens[..length]);
    let number = raw::exports::import_prefix(queue, &tokens, &sequence.adapter)?;
    // An error: there is no room for what was found.
    let (first, count) = HostFuture::new(number, raw::exports::await_prefix).await.unwrap_or((0, 0));
    if count > 0 {
        sequence.pages.adopt(first, count);
        sequence.computed = count as usize * size;
    }
    if sequence.computed < length {
        sequence.flush()?;
        let pages = sequence.pages.sealed(queue, length)?;
        let addresses = ranges(pages.iter().map(|page| page.address));
        let offered = raw::exports::export_prefix(queue, &addresses, &tokens, &sequence.adapter)?;
        raw::core::cancel(offered)?; // nobody waits for it
    }
    Ok(())
}

fn wrong_state(message: &str) -> Error {
    Error::with(Code::InvalidState, message)
}

impl Context {
    /// Keeps its tokens and keys under a name, for `Context::open` in any inferlet of the same user, after this one has
    /// ended, too: as long as memory is not needed for something else. An older export of this name makes room.
    pub async fn export(&mut self, name: &str) -> Result<()> {
        self.settle().await?;
        let sequence = &mut self.sequence;
        if sequence.pages.has_dropped() {
            return Err(wrong_state("export: tokens of the context were dropped, and exports have all tokens"));
        }
        sequence.flush()?;
        let queue = sequence.queue.number;
        let pages = sequence.pages.sealed(queue, sequence.tokens.len())?;
        let addresses = ranges(pages.iter().map(|page| page.address));
        let tokens = encode_numbers(&sequence.tokens);
        let number = raw::exports::export_kvpage(queue, &full_name(name, &sequence.adapter), &addresses, &tokens)?;
        HostFuture::new(number, raw::core::await_number).await.map(|_| ())
    }

    /// A context with what was exported under a name; the last token runs again. An error with `Code::NotFound`: there
    /// is no such export; fill a new one. At a model that keeps states the last token does not run again: fill one more,
    /// or all run again for the next output. `adapter`: that with which it was made ("": none).
    pub async fn open(name: &str, model: impl AsRef<str>, adapter: &str) -> Result<Context> {
        let mut sequence = Sequence::new(Model::named(model.as_ref())?, adapter)?;
        let number = raw::exports::import_kvpage(sequence.queue.number, &full_name(name, adapter))?;
        let (first, count, about) = HostFuture::new(number, raw::exports::await_import).await?;
        sequence.pages.adopt(first, count);
        let about = Json::parse(&about)?;
        let text = |key: &str| about.get(key).and_then(Json::as_str).unwrap_or("");
        let tokens = decode_numbers(text("tokens"), u32::from_le_bytes);
        let positions = decode_numbers(text("positions"), i32::from_le_bytes);
        let filled = positions.iter().filter(|position| **position >= 0).count();
        let is_hidden = about.get("hidden").map_or(false, |ranges| !ranges.items().is_empty());
        if tokens.is_empty() || tokens.len() != filled || is_hidden {
            return Err(wrong_state(&format!("export {:?} is not one of a context: import it by a raw call", name)));
        }
        sequence.offset = positions[0] as isize;
        sequence.computed = tokens.len();
        sequence.tokens = tokens;
        if !sequence.model.has_states {
            sequence.rewind(sequence.tokens.len() - 1)?; // its output is not exported
        }
        Ok(Context::of(sequence))
    }

    /// A context with the texts of all parts behind each other, without running them again: modular caching (Gim et al.
    /// 2024). Each part keeps what it has computed alone; what comes sees all. A part that begins behind those before
    /// it stays there; any other is moved behind them, if the model can move tokens. The parts themselves stay as they
    /// are.
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a mut Context>) -> Result<Context> {
        let mut parts: Vec<&mut Context> = parts.into_iter().collect();
        for part in &mut parts {
            part.take_noted()?;
        }
        if parts.is_empty() || parts.iter().any(|part| part.sequence.tokens.is_empty()) {
            return Err(wrong_state("join: give contexts that are not empty"));
        }
        if parts.iter().any(|part| part.sequence.pages.has_dropped()) {
            return Err(wrong_state("join: tokens of a part were dropped"));
        }
        let model = parts[0].sequence.model.clone();
        let adapter = parts[0].sequence.adapter.clone();
        if parts.iter().any(|part| part.sequence.model.name != model.name || part.sequence.adapter != adapter) {
            return Err(Error::invalid("join: the parts are of different models, or adapters"));
        }
        let mut whole = Sequence::new(model, &adapter)?;
        let mut behind = 0; // the highest position
        let last = parts.len() - 1;
        for (place, part) in parts.into_iter().enumerate() {
            let part = &mut part.sequence;
            part.flush()?;
            let count = part.tokens.len() - usize::from(place == last);
            let by = if part.model.moves_tokens { (behind - part.offset).max(0) } else { 0 };
            if count > 0 {
                whole.pages.append(whole.queue.number, &part.pages, whole.computed, count, by as usize)?;
            }
            whole.tokens.extend_from_slice(&part.tokens);
            whole.computed += count;
            behind = behind.max(part.offset + by + count as isize);
        }
        whole.offset = (behind - whole.computed as isize).max(0);
        Ok(Context::of(whole))
    }

    /// A context with the last `last` tokens alone, which run anew from position 0 on: so a text goes on past the
    /// model's last position.
    pub fn restarted(&mut self, last: usize) -> Result<Context> {
        self.take_noted()?;
        let tokens = &self.sequence.tokens[self.sequence.tokens.len().saturating_sub(last.max(1))..];
        let mut fresh = Context::with(&self.sequence.model.name, &self.sequence.adapter, 0)?;
        fresh.sequence.tokens.extend_from_slice(tokens);
        Ok(fresh)
    }
}
