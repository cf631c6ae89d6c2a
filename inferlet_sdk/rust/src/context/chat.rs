//! Chat messages in a context.
//!
//! A chat template renders whole conversations, and it decides what stands between two messages. So each turn renders
//! all messages again and keeps the longest common token prefix. Then the context holds exactly the rendered tokens.

use super::sequence::Sequence;
use crate::error::Result;
use crate::json::Json;
use crate::raw;

/// The messages of a context, and their place among its tokens.
#[derive(Clone, Default)]
pub(crate) struct Conversation {
    messages: Vec<Json>,
    start: Option<usize>, // tokens before the first message
    end: usize,           // tokens up to the last `add`
    pub tools: Vec<Json>, // declarations that the template tells the model of
    pub system: String,   // what the system message says of tools
}

pub(crate) fn message(role: &str, content: &str) -> Json {
    Json::object([("role", Json::from(role)), ("content", Json::from(content))])
}

impl Conversation {
    /// Appends the reply that was generated since the last messages, or what stands for it, then new messages.
    pub fn add(&mut self, sequence: &mut Sequence, new: Vec<Json>, reply: Option<Vec<Json>>) -> Result<()> {
        let start = self.start.unwrap_or(sequence.tokens.len());
        let mut messages = self.messages.clone();
        messages.extend(match reply {
            Some(reply) => reply,
            None => self.reply(sequence)?,
        });
        messages.extend(new);
        let shown = Json::List(self.shown(&messages));
        let tools = if self.tools.is_empty() { String::new() } else { Json::List(self.tools.clone()).to_string() };
        let rendered = raw::tokenize::tokenize_chat(sequence.model.some_queue()?, &shown.to_string(), &tools, true)?;
        let common = sequence.tokens[start..].iter().zip(&rendered).take_while(|(one, other)| one == other).count();
        sequence.truncate(start + common)?;
        sequence.tokens.extend_from_slice(&rendered[common..]);
        self.messages = messages;
        self.start = Some(start);
        self.end = sequence.tokens.len();
        Ok(())
    }

    /// The messages with what the system message says of tools.
    fn shown(&self, messages: &[Json]) -> Vec<Json> {
        if self.system.is_empty() {
            return messages.to_vec();
        }
        let first = messages.first().filter(|one| one.get("role").and_then(Json::as_str) == Some("system"));
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
        Ok(vec![message("assistant", &sequence.model.detokenize(generated)?)])
    }
}
