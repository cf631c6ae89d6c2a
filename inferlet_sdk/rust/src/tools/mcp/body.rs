//! What a server answers: bytes, events and messages, as far as they may go.

use std::collections::VecDeque;

use super::events::Events;
use super::texts::{shortened, wrong};
use crate::error::Result;
use crate::json::Json;
use crate::outside::http::Response;
use crate::tools::schema::shown;

/// Bytes of one answer, with all that a stream says before it.
const LARGEST_ANSWER: usize = 1 << 20;
pub(crate) const WRONG_PATH: &str = "is it the right path? It often ends in /mcp";

/// The body of an answer to a request, `what`.
pub(crate) struct Body<'a> {
    response: Response,
    url: &'a str,
    what: &'a str,
    size: usize,
    events: Option<Events>,
    parts: VecDeque<Vec<u8>>,
    messages: VecDeque<Json>,
    is_over: bool,
}

impl<'a> Body<'a> {
    pub fn new(response: Response, url: &'a str, what: &'a str) -> Self {
        let (parts, messages) = (VecDeque::new(), VecDeque::new());
        Body { response, url, what, size: 0, events: None, parts, messages, is_over: false }
    }

    /// Checks that messages come, in JSON or in a stream of events.
    pub fn expect_messages(&mut self) -> Result<()> {
        let header = self.response.header("content-type").unwrap_or("");
        let kind = header.split(';').next().unwrap_or("").trim().to_lowercase();
        match kind.as_str() {
            "text/event-stream" => self.events = Some(Events::default()),
            "application/json" => {}
            kind => {
                let (kind, what) = (if kind.is_empty() { "nothing".to_string() } else { shortened(kind) }, self.what);
                let told = format!("answers {} with {}, where MCP has JSON or a stream of events", what, kind);
                return Err(wrong(self.url, &format!("{}: {}", told, WRONG_PATH)));
            }
        }
        Ok(())
    }

    /// The next message, as soon as it is there; None: the answer is over.
    pub async fn message(&mut self) -> Result<Option<Json>> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(Some(message));
            }
            if let Some(part) = self.parts.pop_front() {
                self.messages = self.parse(part)?;
            } else if self.is_over {
                return Ok(None);
            } else if self.events.is_none() {
                let whole = self.rest().await?;
                self.parts.push_back(whole);
            } else {
                let piece = self.piece().await?;
                self.parts.extend(self.events.as_mut().map(|events| events.feed(&piece)).unwrap_or_default());
            }
        }
    }

    /// All bytes that were not read.
    pub async fn rest(&mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        while !self.is_over {
            all.extend(self.piece().await?);
        }
        Ok(all)
    }

    /// The next bytes; none at the end.
    async fn piece(&mut self) -> Result<Vec<u8>> {
        let piece = self.response.piece().await?;
        self.size += piece.len();
        self.is_over = piece.is_empty();
        if self.size > LARGEST_ANSWER {
            let told = format!("answers {} with more than {} MiB", self.what, LARGEST_ANSWER >> 20);
            return Err(wrong(self.url, &(told + ", which is not read: ask it for less")));
        }
        Ok(piece)
    }

    /// The messages of a body or an event: one, or a list of them as older revisions have it.
    fn parse(&self, part: Vec<u8>) -> Result<VecDeque<Json>> {
        let text = String::from_utf8(part).map_err(|error| format!("not UTF-8: {}", error.utf8_error()));
        let value = text.and_then(|text| Json::parse(&text).map_err(|error| error.message));
        let messages = match value {
            Ok(Json::List(several)) => several,
            Ok(one) => vec![one],
            Err(why) => {
                let told = format!("answers {} with what is no JSON ({}): tell who runs it", self.what, why);
                return Err(wrong(self.url, &told));
            }
        };
        match messages.iter().find(|one| !matches!(one, Json::Object(_))) {
            Some(one) => {
                let told = format!("answers {} with {}, which is no message of MCP", self.what, shown(one));
                Err(wrong(self.url, &(told + ": tell who runs it")))
            }
            None => Ok(messages.into()),
        }
    }
}
