//! Inferlets that an inferlet launches: on the same host, within its limits.

use crate::error::{Error, Result};
use crate::generation::sampler::Handle;
use crate::json::{finite, Json};
use crate::outside::messages::{self, Message};
use crate::raw;
use crate::task::HostFuture;

/// What is launched: set what it needs, then `launch` it.
#[must_use = "nothing is launched before `launch`"]
#[derive(Default)]
pub struct Launch {
    program: String,
    words: Vec<String>,
    named: Vec<(String, Json)>,
    environment: Vec<(String, Json)>,
    limits: Vec<(String, Json)>,
}

impl Launch {
    /// A program that was uploaded, by its name or hash; "": this one again.
    pub fn of(program: impl Into<String>) -> Self {
        Launch { program: program.into(), ..Launch::default() }
    }

    /// A word of its command line.
    pub fn word(mut self, word: impl Into<String>) -> Self {
        self.words.push(word.into());
        self
    }

    /// An argument by name.
    pub fn argument(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.named.push((name.to_string(), value.into()));
        self
    }

    /// An entry of its environment.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_string(), Json::from(value)));
        self
    }

    /// What it may hold at most, with its own children: `memory_bytes`, `cpu_seconds`, `max_pages`, `max_embeds`,
    /// `max_queues`, `max_children`. By default what this inferlet may.
    pub fn limit(mut self, name: &str, most: impl Into<Json>) -> Self {
        self.limits.push((name.to_string(), most.into()));
        self
    }

    /// Launches it; that it cannot be launched is told by `Child::end`.
    pub fn launch(mut self) -> Result<Child> {
        for (name, most) in &self.limits {
            if let Json::Float(most) = most {
                finite(name, *most)?;
            }
        }
        if !self.named.is_empty() {
            let named = Json::Object(self.named).to_string();
            self.environment.push(("kwargs".to_string(), Json::Text(named)));
        }
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let options =
            Json::object([("environment", Json::Object(self.environment)), ("limits", Json::Object(self.limits))]);
        raw::children::launch(&self.program, &words, &options.to_string()).map(|child| Child(Handle(child)))
    }
}

/// A child. One that is dropped goes on; its messages and its end are not taken any more.
pub struct Child(Handle);

/// How a child ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildEnd {
    /// Its id.
    pub inferlet: String,
    /// "finished", "failed", "terminated", "exceeded", "evicted" or "lost".
    pub status: String,
    /// What its `main` returned.
    pub result: Json,
    /// Why it ended otherwise.
    pub error: Option<String>,
}

impl Child {
    /// How it ended, whatever that is; an error says what kept it from being launched.
    pub async fn end(&self) -> Result<ChildEnd> {
        let told = HostFuture::new(raw::children::join(self.0 .0)?, raw::core::await_text).await?;
        let told = Json::parse(&told)?;
        let text = |key: &str| told.get(key).and_then(Json::as_str).map(str::to_string);
        let inferlet = text("inferlet").unwrap_or_default();
        let result = text("result").map_or(Ok(Json::Null), |result| Json::parse(&result));
        let result = result.map_err(|error| {
            Error::new(format!("the child {} finished, but its result cannot be read: {}", inferlet, error.message))
        })?;
        Ok(ChildEnd { inferlet, status: text("status").unwrap_or_default(), result, error: text("error") })
    }

    /// What its `main` returned; an error unless it finished.
    pub async fn result(&self) -> Result<Json> {
        let end = self.end().await?;
        if end.status == "finished" {
            return Ok(end.result);
        }
        let why = end.error.unwrap_or_else(|| "no reason is known".to_string());
        Err(Error::new(format!("the child {} {}: {}", end.inferlet, end.status, why)))
    }

    /// Sends a message; waits while the child receives slowly.
    pub async fn send(&self, message: &str) -> Result<()> {
        messages::send(self.0 .0, message).await
    }

    /// The next message that it sends; None when it has ended, and all are taken.
    pub async fn receive(&self) -> Result<Option<Message>> {
        messages::receive(self.0 .0)?.await
    }

    /// Ends it soon.
    pub fn cancel(&self) -> Result<()> {
        raw::children::cancel_child(self.0 .0)
    }
}
