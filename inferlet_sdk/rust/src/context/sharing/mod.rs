//! Contexts behind each other, contexts that are exported under a name, and prompts that begin alike.

pub(super) mod prefixes;

use crate::base64::{decode_numbers, encode_numbers};
use crate::context::model::Model;
use crate::context::pages::Part;
use crate::context::sequence::Sequence;
use crate::context::Context;
use crate::error::{Code, Error, Result};
use crate::json::Json;
use crate::raw;
use crate::task::HostFuture;

const WITH: &str = " (adapter ";

/// The name of the export of a context with an adapter ("": none), as the Python SDK has it.
fn full_name(name: &str, adapter: &str) -> Result<String> {
    if name.contains(WITH) && name.ends_with(')') {
        let what = format!("{:?} names an adapter: give the name before it, and a context with the adapter", name);
        return Err(Error::invalid(what));
    }
    Ok(if adapter.is_empty() { name.to_string() } else { format!("{}{}{})", name, WITH, adapter) })
}

/// With which adapters contexts are exported under a name; "": without one.
async fn adapters(queue: u32, name: &str) -> Result<Vec<String>> {
    let number = raw::exports::list_exports(queue, name)?;
    let listed = Json::parse(&HostFuture::new(number, raw::core::await_text).await?)?;
    let adapter = |one: &Json| match one.get("name")?.as_str()?.strip_prefix(name)? {
        "" => Some(String::new()),
        behind => behind.strip_prefix(WITH)?.strip_suffix(')').map(str::to_string),
    };
    Ok(listed.items().iter().filter_map(adapter).collect())
}

/// What is exported under a full name. The host keeps room for the largest export, so only some fit at a time: then
/// this one waits for another.
async fn fetch(model: &Model, queue: u32, name: &str) -> Result<(u32, u32, String)> {
    loop {
        match raw::exports::import_kvpage(queue, name) {
            Ok(number) => {
                let import = HostFuture::new(number, raw::exports::await_import);
                let _under_way = model.imports.acquire().await;
                return import.await;
            }
            Err(error) if error.is_lack_of_room() && !model.imports.is_idle() => model.imports.released().await,
            Err(error) => return Err(error),
        }
    }
}

/// What was exported under a name.
async fn import(sequence: &Sequence, name: &str) -> Result<(u32, u32, String)> {
    let (queue, adapter) = (sequence.queue.number, &sequence.adapter);
    let found = fetch(&sequence.model, queue, &full_name(name, adapter)?).await;
    if !matches!(&found, Err(error) if error.code == Code::NotFound) {
        return found;
    }
    let others = adapters(queue, name).await?;
    match others.first() {
        Some(other) if !others.contains(adapter) => {
            let made =
                if other.is_empty() { "without an adapter".to_string() } else { format!("with adapter {:?}", other) };
            Err(wrong_state(&format!("export {:?} was made {}: open it with adapter {:?}", name, made, other)))
        }
        _ => found,
    }
}

fn wrong_state(message: &str) -> Error {
    Error::with(Code::InvalidState, message)
}

impl Context {
    /// Shares the keys of what it holds, generated text included, as those of long prompts are: a context that is
    /// filled with the same tokens does not compute them again. They are there, in whole pages, as long as memory is not
    /// needed for something else. What has not run yet runs, but for the last token. Nothing is waited for: if the
    /// inferlet ends before that, no keys are shared. Short texts are left alone, and so is what was joined or opened.
    ///
    /// At a model that keeps a state of each text, the state is kept here, too, until the context is cut before it or
    /// dropped: `truncate` to this length, and what is filled then, runs nothing again. Others go on from the last token
    /// that has run: all of them, or all but the last one that was generated.
    pub fn keep(&mut self) -> Result<&mut Self> {
        self.take_noted()?;
        prefixes::keep_pages(&mut self.sequence)?;
        self.sequence.keep_end()?;
        Ok(self)
    }

    /// Keeps its tokens and keys under a name, for `Context::open` in any inferlet of the same user, after this one has
    /// ended, too: as long as memory is not needed for something else. An older export of this name makes room.
    pub async fn export(&mut self, name: &str) -> Result<()> {
        self.settle().await?;
        let sequence = &mut self.sequence;
        let own = full_name(name, &sequence.adapter)?;
        if sequence.pages.has_dropped() {
            return Err(wrong_state("export: tokens of the context were dropped, and exports have all tokens"));
        }
        sequence.flush()?;
        sequence.keep_state()?;
        let (queue, length) = (sequence.queue.number, sequence.tokens.len());
        let rest = sequence.pages.copy_rest(queue, length)?;
        let mut addresses = sequence.pages.seal(length - length % sequence.model.page_size);
        addresses.extend(rest.iter().flat_map(|page| [page.address, 1]));
        let tokens = encode_numbers(&sequence.tokens);
        let number = raw::exports::export_kvpage(queue, &own, &addresses, &tokens)?;
        HostFuture::new(number, raw::core::await_number).await?;
        for other in adapters(queue, name).await?.iter().filter(|other| **other != sequence.adapter) {
            let number = raw::exports::unexport_kvpage(queue, &full_name(name, other)?)?;
            let _ = HostFuture::new(number, raw::core::await_number).await; // another program was faster
        }
        Ok(())
    }

    /// A context with what was exported under a name; if nothing is filled behind it, the last token runs again for its
    /// output. An error with `Code::NotFound`: there is no such export; fill a new one. At a model that keeps states the
    /// last token does not run again: fill one more, or all run again for the next output. `adapter`: that with which it
    /// was made ("": none); an error with `Code::InvalidState` names it if it is another one. Where the text is one of a
    /// chat, `resume_chat` goes on with that. `keep` shares nothing of it: it may have been joined.
    pub async fn open(name: &str, model: impl AsRef<str>, adapter: &str) -> Result<Context> {
        let mut sequence = Sequence::new(Model::named(model.as_ref())?, adapter)?;
        let (first, count, about) = import(&sequence, name).await?;
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
        let places: Vec<isize> = positions.iter().filter(|place| **place >= 0).map(|place| *place as isize).collect();
        let last = places.iter().max().map_or(-1, |place| *place);
        sequence.computed = tokens.len();
        sequence.lay(&places.into_iter().enumerate().collect::<Vec<_>>(), last + 1); // a join may have left gaps
        sequence.tokens = tokens;
        sequence.shares = false; // it may have been joined, or be nobody else's: exports do not tell
        if sequence.model.has_states {
            sequence.note_kept();
        }
        Ok(Context::of(sequence))
    }

    /// A context with the texts of all parts behind each other, without running them again: modular caching (Gim et al.
    /// 2024). Each part keeps what it has computed alone; what comes sees all. A part that begins behind those before
    /// it stays there; any other is moved behind them, if the model can move tokens. Tokens that were dropped are left
    /// out. The parts themselves stay as they are. Its keys are not shared: a prompt of the same tokens has others.
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a mut Context>) -> Result<Context> {
        let mut parts: Vec<&mut Context> = parts.into_iter().collect();
        for part in &mut parts {
            part.take_noted()?;
            part.sequence.model.check_states("join")?;
        }
        if parts.is_empty() || parts.iter().any(|part| part.sequence.tokens.is_empty()) {
            return Err(wrong_state("join: give contexts that are not empty"));
        }
        let last = parts.len() - 1;
        parts[last].sequence.check_output()?;
        let model = parts[0].sequence.model.clone();
        let adapter = parts[0].sequence.adapter.clone();
        if parts.iter().any(|part| part.sequence.model.name != model.name || part.sequence.adapter != adapter) {
            return Err(Error::invalid("join: the parts are of different models, or adapters"));
        }
        let mut whole = Sequence::new(model, &adapter)?;
        let (mut behind, mut joined, mut begins) = (0, Vec::new(), Vec::new()); // behind: the highest position
        for (place, part) in parts.iter_mut().enumerate() {
            let part = &mut part.sequence;
            let count = part.tokens.len() - usize::from(place == last); // the last token of all runs again, and sees all
            part.compute(count, &[])?;
            let kept = part.pages.kept(count);
            let first = kept.first().filter(|_| part.model.moves_tokens);
            let by = first.map_or(0, |(first, _)| (behind - part.position_of_key(*first)).max(0));
            for (start, stop) in &kept {
                let at = |token: usize| (whole.tokens.len() + token - start, part.position_of_key(token) + by);
                begins.extend([*start].into_iter().chain(part.behind_gaps(*start, *stop)).map(at));
                whole.tokens.extend_from_slice(&part.tokens[*start..*stop]);
            }
            behind = behind.max(part.offset + by + count as isize);
            joined.push(Part { pages: &part.pages, kept, by: by as usize });
        }
        whole.pages.join(whole.queue.number, &joined)?;
        whole.computed = whole.tokens.len();
        whole.tokens.extend(parts[last].sequence.tokens.last());
        whole.lay(&begins, behind);
        whole.shares = false; // what runs all of these tokens in one piece has other keys
        Ok(Context::of(whole))
    }

    /// A context with the last `last` tokens alone, which run anew from position 0 on: so a text goes on past the
    /// model's last position.
    pub fn restarted(&mut self, last: usize) -> Result<Context> {
        self.take_noted()?;
        if last == 0 {
            return Err(Error::invalid("last: nothing goes on from 0 tokens: keep 1 or more"));
        }
        let tokens = &self.sequence.tokens[self.sequence.tokens.len().saturating_sub(last)..];
        let mut fresh = Context::with(&self.sequence.model.name, &self.sequence.adapter, 0)?;
        fresh.sequence.tokens.extend_from_slice(tokens);
        fresh.sequence.shares = self.sequence.shares;
        Ok(fresh)
    }
}
