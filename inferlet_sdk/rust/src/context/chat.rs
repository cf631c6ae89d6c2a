//! Chat messages in a context.
//!
//! A chat template renders whole conversations, and it decides what stands between two messages. So each turn renders
//! all messages again and keeps the longest common token prefix. Then the context holds exactly the rendered tokens.

use super::sequence::{common_length, Sequence};
use crate::error::{Error, Result};
use crate::json::Json;
use crate::raw;

/// The messages of a context, and their place among its tokens.
#[derive(Clone, Default)]
pub(crate) struct Conversation {
    messages: Vec<Json>,
    start: Option<usize>, // tokens before the first message
    end: usize,           // tokens up to the last `add`
    left: usize,          // how many of these are there since; fewer if the context was cut
    pub tools: Vec<Json>, // declarations that the template tells the model of
    pub system: String,   // what the system message says of tools
}

fn is_of(role: &str, message: &Json) -> bool {
    message.get("role").and_then(Json::as_str) == Some(role)
}

pub(crate) fn message(role: &str, content: &str) -> Json {
    Json::object([("role", Json::from(role)), ("content", Json::from(content))])
}

/// A message that was cut off, with as much of its text as stands at the end of what is left.
fn beginning_of(cut: &Json, left: &str) -> Option<Json> {
    let content = cut.get("content").and_then(Json::as_str)?;
    let mut ends = content.char_indices().rev().map(|(at, one)| at + one.len_utf8());
    let half = &content[..ends.find(|end| left.ends_with(&content[..*end]))?];
    Some(message(cut.get("role").and_then(Json::as_str)?, half))
}

/// An error if one of the messages is no object.
fn check(messages: &[Json]) -> Result<()> {
    match messages.iter().position(|one| !matches!(one, Json::Object(_))) {
        None => Ok(()),
        Some(place) => Err(Error::invalid(format!(
            r#"messages[{}]: give an object, such as {{"role": "user", "content": "..."}}, not {}"#,
            place, messages[place]
        ))),
    }
}

impl Conversation {
    /// The context keeps its first `length` tokens: the next `add` goes on from what is left of the messages.
    pub fn cut(&mut self, length: usize) {
        self.left = self.left.min(length);
    }

    /// Whether a context begins with these messages, as `add` fills them; then it goes on from there, and what stands
    /// behind them is a reply.
    pub fn begun(&mut self, sequence: &Sequence, messages: Vec<Json>) -> Result<bool> {
        check(&messages)?;
        let (queue, tools) = (sequence.model.some_queue()?, self.told_tools());
        let shown = Json::List(self.shown(&messages)).to_string();
        for is_reply in [true, false] {
            let rendered = raw::tokenize::tokenize_chat(queue, &shown, &tools, is_reply)?;
            if sequence.tokens.starts_with(&rendered) {
                (self.messages, self.start) = (messages, Some(0));
                (self.end, self.left) = (rendered.len(), rendered.len());
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Appends the reply that was generated since the last messages, or what stands for it, then new messages.
    pub fn add(&mut self, sequence: &mut Sequence, new: Vec<Json>, reply: Option<Vec<Json>>) -> Result<()> {
        check(&new)?;
        check(reply.as_deref().unwrap_or_default())?;
        if self.left < self.end {
            self.keep_left(sequence)?;
        }
        let start = self.start.unwrap_or(sequence.tokens.len());
        let mut messages = self.messages.clone();
        messages.extend(match reply {
            Some(reply) => reply,
            None => self.reply(sequence)?,
        });
        messages.extend(new);
        let shown = self.shown(&messages);
        let tools = self.told_tools();
        let queue = sequence.model.some_queue()?;
        let rendered = raw::tokenize::tokenize_chat(queue, &Json::List(shown.clone()).to_string(), &tools, true)?;
        let common = common_length(&sequence.tokens[start..], &rendered);
        let end = start + common;
        // what was dropped behind it is another text now
        let end = sequence.pages.ends_in_dropped(end).map_or(end, |(dropped, _)| dropped);
        let mut text = sequence.tokens[end.min(start)..start].to_vec();
        text.extend_from_slice(&rendered[end.saturating_sub(start)..]);
        sequence.truncate(end)?;
        let mut parts = Vec::new();
        let has_system = end <= start && shown.len() > 1 && is_of("system", &shown[0]);
        if has_system && sequence.notes_ends(rendered.len()) {
            let system = Json::List(shown[..1].to_vec()).to_string(); // not all templates take it alone
            parts.extend(raw::tokenize::tokenize_chat(queue, &system, &tools, false));
        }
        sequence.append_parts(&text, &parts);
        self.messages = messages;
        self.start = Some(start);
        self.end = sequence.tokens.len();
        self.left = self.end;
        Ok(())
    }

    /// Forgets the messages that were cut off. Of one that was cut in its middle, the text that is left stays. What
    /// comes behind them is a reply.
    fn keep_left(&mut self, sequence: &Sequence) -> Result<()> {
        let start = self.start.unwrap_or(0);
        let left = &sequence.tokens[start.min(self.left)..self.left];
        let (queue, tools) = (sequence.model.some_queue()?, self.told_tools());
        let try_fit = |(count, is_reply): (usize, bool)| {
            let shown = Json::List(self.shown(&self.messages[..count])).to_string();
            // not all templates take each part of a conversation
            let rendered = raw::tokenize::tokenize_chat(queue, &shown, &tools, is_reply).ok()?;
            left.starts_with(&rendered).then(|| (count, is_reply, rendered.len()))
        };
        // with the beginning of a reply, or without
        let ways = (1..=self.messages.len()).rev().flat_map(|count| [(count, true), (count, false)]);
        let may_be = |(count, is_reply): &(usize, bool)| {
            !is_reply || self.messages.get(*count).map_or(true, |next| is_of("assistant", next))
        };
        let (count, is_reply, length) = ways.filter(may_be).find_map(try_fit).unwrap_or((0, false, 0));
        self.end = if is_reply { start + length } else { self.left };
        let rest = &left[length..];
        let half = match self.messages.get(count) {
            Some(cut) if !is_reply && !rest.is_empty() => beginning_of(cut, &sequence.model.detokenize(rest)?),
            _ => None,
        };
        self.messages.truncate(count);
        self.messages.extend(half);
        if left.is_empty() {
            self.start = None;
        }
        Ok(())
    }

    /// The declarations of tools as the template gets them.
    fn told_tools(&self) -> String {
        if self.tools.is_empty() {
            return String::new();
        }
        Json::List(self.tools.clone()).to_string()
    }

    /// The messages with what the system message says of tools.
    fn shown(&self, messages: &[Json]) -> Vec<Json> {
        if self.system.is_empty() {
            return messages.to_vec();
        }
        let first = messages.first().filter(|one| is_of("system", one));
        match first.and_then(|one| one.get("content")).and_then(Json::as_str) {
            Some(content) => {
                let first = message("system", &format!("{}\n{}", content, self.system));
                [&[first], &messages[1..]].concat()
            }
            None => [&[message("system", &self.system)], messages].concat(),
        }
    }

    fn reply(&self, sequence: &Sequence) -> Result<Vec<Json>> {
        let generated = &sequence.tokens[if self.start.is_some() { self.end } else { sequence.tokens.len() }..];
        if generated.is_empty() {
            return Ok(Vec::new());
        }
        let mut said = sequence.model.detokenize(generated)?;
        if sequence.half == Some(sequence.tokens.len()) && said.ends_with('\u{fffd}') {
            said.pop(); // half of a character
        }
        Ok(vec![message("assistant", &said)])
    }
}
