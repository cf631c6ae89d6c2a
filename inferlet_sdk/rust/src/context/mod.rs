//! `Context`: a text that a model continues.

mod chat;
pub mod model;
mod pages;
pub mod search;
pub(crate) mod sequence;
mod sharing;

use std::rc::Rc;

use crate::error::{Code, Error, Result};
use crate::generation::dist::Dist;
use crate::generation::sampler::Sampler;
use crate::generation::Generation;
use crate::json::Json;
use crate::raw;
use crate::task::HostFuture;
use chat::{message, Conversation};
use model::Model;
use sequence::Sequence;

/// A growing text with its KV cache. It owns pages and an embed, and gives them back when it is dropped.
///
/// Filling is lazy: `fill` only stores the text. The next call that needs an output of the model tokenizes the stored
/// text in one piece and runs it in one go.
pub struct Context {
    pub(crate) sequence: Sequence,
    noted: Vec<(String, bool)>, // texts, and whether special tokens are recognized
    conversation: Conversation,
}

impl Context {
    /// An empty context of a model.
    pub fn new(model: impl AsRef<str>) -> Result<Self> {
        Self::with(model, "", 0)
    }

    /// All of it runs with a LoRA adapter ("": none). `position`: of its first token; contexts that are to be joined
    /// may leave room for each other.
    pub fn with(model: impl AsRef<str>, adapter: &str, position: usize) -> Result<Self> {
        let mut sequence = Sequence::new(Model::named(model.as_ref())?, adapter)?;
        sequence.offset = position as isize;
        Ok(Self::of(sequence))
    }

    /// Keeps the keys of its prompt to itself. Otherwise those of a long one are shared: inferlets of the same user whose
    /// prompts begin alike do not run its beginning again.
    pub fn keep_apart(&mut self) -> &mut Self {
        self.sequence.shares = false;
        self
    }

    fn of(sequence: Sequence) -> Self {
        Context { sequence, noted: Vec::new(), conversation: Conversation::default() }
    }

    // ---- filling ----

    /// Appends text of the program: special tokens in it are recognized. None are added.
    pub fn fill(&mut self, text: impl Into<String>) -> &mut Self {
        self.noted.push((text.into(), true));
        self
    }

    /// Appends text of others, which is plain text, whatever it says.
    pub fn fill_plain(&mut self, text: impl Into<String>) -> &mut Self {
        self.noted.push((text.into(), false));
        self
    }

    /// Appends tokens.
    pub fn fill_tokens(&mut self, tokens: &[u32]) -> Result<&mut Self> {
        self.take_noted()?;
        self.sequence.append(tokens);
        Ok(self)
    }

    /// Appends a chat message in the model's template. Text generated since the last one becomes the assistant's
    /// message before it. Text of messages is never read as special tokens.
    pub fn chat(&mut self, role: &str, content: &str) -> Result<&mut Self> {
        self.chat_with(vec![message(role, content)], None)
    }

    /// Appends a message of the system.
    pub fn system(&mut self, content: &str) -> Result<&mut Self> {
        self.chat("system", content)
    }

    /// Appends a message of the user.
    pub fn user(&mut self, content: &str) -> Result<&mut Self> {
        self.chat("user", content)
    }

    /// Appends a message of the assistant.
    pub fn assistant(&mut self, content: &str) -> Result<&mut Self> {
        self.chat("assistant", content)
    }

    /// Appends messages, objects as the template takes them. `reply`: what stands for the text that was generated
    /// since.
    pub fn chat_with(&mut self, messages: Vec<Json>, reply: Option<Vec<Json>>) -> Result<&mut Self> {
        self.take_noted()?;
        self.conversation.add(&mut self.sequence, messages, reply)?;
        Ok(self)
    }

    /// The messages of the chat with which a context begins that was opened, as `chat_with` took them, told of the same
    /// tools: what stands behind them is a reply, and the next message goes on from there. Without it a message begins
    /// another chat behind all of the text. An error with `Code::NotFound` if the context does not begin so.
    pub fn resume_chat(&mut self, messages: Vec<Json>) -> Result<&mut Self> {
        self.take_noted()?;
        if !self.conversation.begun(&self.sequence, messages)? {
            let message = "the context does not begin with these messages: fill a new one, and export it";
            return Err(Error::with(Code::NotFound, message));
        }
        Ok(self)
    }

    /// Declarations of tools that the template tells the model of from now on.
    pub fn declare_tools(&mut self, tools: Vec<Json>) -> &mut Self {
        self.conversation.tools = tools;
        self
    }

    /// What the system message says of tools from now on, where the template tells nothing of them.
    pub fn describe_tools(&mut self, text: String) -> &mut Self {
        self.conversation.system = text;
        self
    }

    pub(crate) fn take_noted(&mut self) -> Result<()> {
        if self.noted.is_empty() {
            return Ok(());
        }
        let noted = &self.noted; // what is refused stays there: it must not be missing without a word
        let tokens = tokens_of(self.model(), noted)?;
        let mut parts = Vec::new();
        if noted.len() > 1 && self.sequence.notes_ends(tokens.len()) {
            parts = vec![tokens_of(self.model(), &noted[..1])?, tokens_of(self.model(), &noted[..noted.len() - 1])?];
        }
        self.sequence.append_parts(&tokens, &parts);
        self.noted.clear();
        Ok(())
    }

    pub(crate) async fn settle(&mut self) -> Result<()> {
        self.take_noted()?;
        sharing::prefixes::share_prefix(&mut self.sequence).await
    }

    // ---- what it holds ----

    /// The model, with its sizes and limits.
    pub fn model(&self) -> &Rc<Model> {
        &self.sequence.model
    }

    /// All tokens, filled and generated.
    pub fn tokens(&mut self) -> Result<&[u32]> {
        self.take_noted()?;
        Ok(&self.sequence.tokens)
    }

    /// Text of all tokens, without special tokens.
    pub fn text(&mut self) -> Result<String> {
        self.take_noted()?;
        self.sequence.model.detokenize(&self.sequence.tokens)
    }

    /// Its queue and its pages as ranges, for raw calls.
    pub fn raw_parts(&mut self) -> (u32, Vec<u32>) {
        self.sequence.queue.is_open.set(true);
        (self.sequence.queue.number, self.sequence.pages.context().to_vec())
    }

    // ---- outputs ----

    /// Continues the text by at most so many tokens, or (`None`) as many as the model's context holds.
    pub fn generate(&mut self, max_tokens: impl Into<Option<usize>>) -> Generation<'_> {
        Generation::new(self, max_tokens.into())
    }

    /// The distribution of the next token, cut to the `k` most probable tokens.
    pub async fn next_dist(&mut self, k: usize, temperature: f32) -> Result<Dist> {
        self.settle().await?;
        self.sequence.next_dist(k, temperature).await
    }

    /// Samples the next token without appending it.
    pub async fn sample(&mut self, sampler: &Sampler) -> Result<u32> {
        self.settle().await?;
        let handle = sampler.create()?;
        self.sequence.sample(sampler, handle.0)?.await
    }

    /// Runs the filled text and waits until that is done. Otherwise the next call that needs an output runs it.
    pub async fn flush(&mut self) -> Result<()> {
        self.settle().await?;
        self.sequence.flush()?;
        let number = raw::core::synchronize(self.sequence.queue.number)?;
        HostFuture::new(number, raw::core::await_number).await.map(|_| ())
    }

    // ---- cutting and sharing ----

    /// A context with the same text and shared pages. Thousands may live at once. Text that has not run yet runs first,
    /// and keys that others have are not looked for, nor are these offered: of a long prompt that others may have,
    /// `flush` first.
    pub fn fork(&mut self) -> Result<Context> {
        self.take_noted()?;
        let mut child = Self::of(self.sequence.fork()?);
        child.conversation = self.conversation.clone();
        Ok(child)
    }

    /// Keeps the first `length` tokens. It cannot end among tokens that were dropped; right behind them it has no output
    /// until something is filled. What is left of chat messages is what the next one goes on from.
    pub fn truncate(&mut self, length: usize) -> Result<&mut Self> {
        self.take_noted()?;
        if let Some((start, stop)) = self.sequence.pages.ends_in_dropped(length) {
            let message =
                format!("tokens {} to {} were dropped: truncate to at most {}, or {}", start, stop, start, stop);
            return Err(Error::with(Code::InvalidState, message));
        }
        self.sequence.truncate(length)?;
        self.conversation.cut(length);
        Ok(self)
    }

    /// The model does not see the tokens `start` .. `stop` any more; pages that hold no others are given back. They
    /// stay in `tokens`. Those behind them move up, unless `close_gap` is false, or the model cannot move tokens. The
    /// last token cannot be dropped; it runs again.
    pub fn drop_tokens(&mut self, start: usize, stop: usize, close_gap: bool) -> Result<&mut Self> {
        self.take_noted()?;
        let length = self.sequence.tokens.len();
        if start > stop || stop >= length.max(1) {
            return Err(Error::invalid(format!(
                "tokens {} to {} cannot be dropped: of {} tokens all but the last one can",
                start, stop, length
            )));
        }
        if start < stop {
            self.sequence.drop_tokens(start, stop, close_gap)?;
        }
        Ok(self)
    }

    /// Drops all but the last `length` tokens, and the first `sink`, to which models attend however far they are (Xiao
    /// et al. 2023). The last ones move up behind the sinks, so a text has no end: call it again and again.
    pub fn window(&mut self, length: usize, sink: usize) -> Result<&mut Self> {
        self.take_noted()?;
        if length == 0 {
            return Err(Error::invalid("length: the last 0 tokens are no window: keep 1 or more"));
        }
        let last = self.sequence.tokens.len().saturating_sub(length);
        if sink < last {
            self.drop_tokens(sink, last, true)?;
        }
        Ok(self)
    }
}

/// Tokens of texts one behind the other. All are one piece, unless there are special tokens in them and not all are read
/// alike: then what is plain is tokenized apart.
fn tokens_of(model: &Model, noted: &[(String, bool)]) -> Result<Vec<u32>> {
    let text: String = noted.iter().map(|(text, _)| text.as_str()).collect();
    let special = noted[0].1;
    let tokens = model.tokenize(&text, special)?;
    if noted.iter().all(|(_, one)| *one == special) || tokens == model.tokenize(&text, !special)? {
        return Ok(tokens);
    }
    let (mut found, mut rest) = (Vec::new(), noted);
    while let Some((_, special)) = rest.first() {
        let count = rest.iter().take_while(|(_, one)| one == special).count();
        let text: String = rest[..count].iter().map(|(text, _)| text.as_str()).collect();
        found.extend(model.tokenize(&text, *special)?);
        rest = &rest[count..];
    }
    Ok(found)
}
