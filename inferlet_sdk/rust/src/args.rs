//! The launch of a program, and the connection to its client.

use std::cell::RefCell;
use std::fmt::Display;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::generation::Generation;
use crate::json::Json;
use crate::outside::messages::{self, Message};
use crate::raw;

/// The launch: arguments, environment, messages to and from the client.
///
/// Arguments are words of a command line (`--points 5`, `--points=5`, `points=5`, or a plain word), or values that a
/// client has sent by name.
pub struct Args {
    words: RefCell<Vec<Word>>,
    environment: Vec<(String, String)>,
    named: Json,
}

/// A word of the command line that was not taken; some stand for a value.
struct Word {
    text: String,
    value: Option<Json>,
}

impl Args {
    pub(crate) fn new() -> Self {
        let environment = raw::core::get_env();
        let entry = |name: &str| {
            let found = environment.iter().find(|(key, _)| key == name);
            found.and_then(|(_, text)| Json::parse(text).ok()).unwrap_or(Json::Null)
        };
        let (values, named) = (entry("args"), entry("kwargs"));
        let word = |(place, text): (usize, String)| Word { text, value: values.get(&place.to_string()).cloned() };
        let words = raw::core::get_arg().into_iter().enumerate().map(word).collect();
        Args { words: RefCell::new(words), environment, named }
    }

    /// Launch metadata: `inferlet`, `program` and `user`, set by the server, and what the client added.
    pub fn environment(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Name of the default model.
    pub fn model(&self) -> String {
        raw::core::available_models().into_iter().next().unwrap_or_default()
    }

    /// An argument by name, or the next plain word. An error says that it is missing, or what is wrong with it.
    pub fn required<T: Argument>(&self, name: &str) -> Result<T> {
        match self.by_name(name)? {
            Some(value) => Ok(value),
            None => self.next_word(name)?.ok_or_else(|| Error::new(format!("missing: {}", name))),
        }
    }

    /// An argument by name, if it is given.
    pub fn optional<T: Argument>(&self, name: &str) -> Result<Option<T>> {
        self.by_name(name)
    }

    /// An argument by name, or what stands for it.
    pub fn or<T: Argument>(&self, name: &str, default: T) -> Result<T> {
        Ok(self.by_name(name)?.unwrap_or(default))
    }

    /// An error if there are arguments that nobody has asked for.
    pub fn finish(&self) -> Result<()> {
        match self.words.borrow().first() {
            Some(word) => Err(Error::new(format!("unexpected argument {:?}", word.text))),
            None => Ok(()),
        }
    }

    fn by_name<T: Argument>(&self, name: &str) -> Result<Option<T>> {
        if let Some(value) = self.named.get(name) {
            return T::from_json(value).map(Some).map_err(|wanted| wrong(name, &wanted, &value.to_string()));
        }
        let mut words = self.words.borrow_mut();
        for place in 0..words.len() {
            let text = words[place].text.clone();
            let (key, value) = match text.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (text.as_str(), None),
            };
            let is_option = key.starts_with("--");
            if key.trim_start_matches("--").replace('-', "_") != name || !(is_option || value.is_some()) {
                continue;
            }
            words.remove(place);
            let value = match value {
                Some(value) => value.to_string(),
                None if words.get(place).map_or(false, |next| !next.text.starts_with("--")) => words.remove(place).text,
                None => "true".to_string(),
            };
            return T::from_word(&value).map(Some).map_err(|wanted| wrong(name, &wanted, &value));
        }
        Ok(None)
    }

    fn next_word<T: Argument>(&self, name: &str) -> Result<Option<T>> {
        let mut words = self.words.borrow_mut();
        let place = match words.iter().position(|word| !word.text.starts_with("--")) {
            Some(place) => place,
            None => return Ok(None),
        };
        let word = words.remove(place);
        let value = match &word.value {
            Some(value) => T::from_json(value),
            None => T::from_word(&word.text),
        };
        value.map(Some).map_err(|wanted| wrong(name, &wanted, &word.text))
    }

    /// Sends a message to the client; waits while the client reads slowly.
    pub async fn send(&self, text: impl AsRef<str>) -> Result<()> {
        messages::send(messages::CLIENT, text.as_ref()).await
    }

    /// The next message of the client.
    pub async fn receive(&self) -> Result<Message> {
        let message = messages::receive(messages::CLIENT)?.await?;
        message.ok_or_else(|| Error::new("the client sends no more messages"))
    }

    /// Sends the text of a generation to the client as it comes, and gives it. The program sleeps meanwhile, where the
    /// host can look for what ends the text.
    pub async fn stream(&self, generation: &mut Generation<'_>) -> Result<String> {
        generation.whole(Some(self)).await
    }

    /// Adds a line to the log of the inferlet.
    pub fn log(&self, message: impl Display) {
        let _ = raw::core::log(raw::core::LogLevel::Info, &message.to_string());
    }
}

fn wrong(name: &str, wanted: &str, given: &str) -> Error {
    Error::new(format!("{}: expected {}, not {:?}", name, wanted, given))
}

/// What an argument can be. The error is what was expected.
pub trait Argument: Sized {
    /// From a word of the command line.
    fn from_word(word: &str) -> Result<Self, String>;
    /// From a value that the client has sent.
    fn from_json(value: &Json) -> Result<Self, String>;
}

impl Argument for String {
    fn from_word(word: &str) -> Result<Self, String> {
        Ok(word.to_string())
    }

    fn from_json(value: &Json) -> Result<Self, String> {
        value.as_str().map(str::to_string).ok_or_else(|| "a string".to_string())
    }
}

impl Argument for bool {
    fn from_word(word: &str) -> Result<Self, String> {
        match word.to_lowercase().as_str() {
            "true" | "yes" | "1" => Ok(true),
            "false" | "no" | "0" => Ok(false),
            _ => Err("true or false".to_string()),
        }
    }

    fn from_json(value: &Json) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| "true or false".to_string())
    }
}

fn parsed<T: FromStr>(word: &str, wanted: &str) -> Result<T, String> {
    word.trim().parse().map_err(|_| wanted.to_string())
}

macro_rules! numbers {
    ($wanted:literal, $read:ident: $($kind:ty),*) => {$(
        impl Argument for $kind {
            fn from_word(word: &str) -> Result<Self, String> {
                parsed(word, $wanted)
            }

            fn from_json(value: &Json) -> Result<Self, String> {
                value.$read().and_then(|number| number.try_into_argument()).ok_or_else(|| $wanted.to_string())
            }
        }
    )*};
}

/// A number of JSON as a number of Rust, if it fits.
trait TryIntoArgument<T> {
    fn try_into_argument(self) -> Option<T>;
}

impl<T: TryFrom<i64>> TryIntoArgument<T> for i64 {
    fn try_into_argument(self) -> Option<T> {
        T::try_from(self).ok()
    }
}

impl TryIntoArgument<f64> for f64 {
    fn try_into_argument(self) -> Option<f64> {
        Some(self)
    }
}

impl TryIntoArgument<f32> for f64 {
    fn try_into_argument(self) -> Option<f32> {
        Some(self as f32)
    }
}

numbers!("a whole number", as_i64: i32, u32, i64, u64, usize);
numbers!("a number", as_f64: f32, f64);

impl Argument for Json {
    fn from_word(word: &str) -> Result<Self, String> {
        Json::parse(word).map_err(|_| "JSON".to_string())
    }

    fn from_json(value: &Json) -> Result<Self, String> {
        Ok(value.clone())
    }
}

impl<T: Argument> Argument for Vec<T> {
    fn from_word(word: &str) -> Result<Self, String> {
        if word.trim_start().starts_with('[') {
            return Self::from_json(&Json::parse(word).map_err(|error| error.message)?);
        }
        word.split(',').filter(|part| !part.is_empty()).map(|part| T::from_word(part.trim())).collect()
    }

    fn from_json(value: &Json) -> Result<Self, String> {
        match value {
            Json::List(items) => items.iter().map(T::from_json).collect(),
            _ => Err("a list".to_string()),
        }
    }
}
