//! The launch of a program, and the connection to its client.

use std::cell::RefCell;
use std::fmt::Display;
use std::str::FromStr;

use crate::abi::passed;
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
    named: Result<Json>,
    asked: RefCell<Vec<String>>, // names of arguments that the program has
}

/// A word of the command line that was not taken; some stand for a value.
struct Word {
    text: String,
    value: Option<Json>,
    is_plain: bool,
}

impl Args {
    pub(crate) fn new() -> Self {
        let environment = raw::core::get_env();
        let entry = |name: &str| match environment.iter().find(|(key, _)| key == name) {
            None => Ok(Json::Object(Vec::new())),
            Some((_, text)) => match Json::parse(text) {
                Ok(Json::Object(values)) => Ok(Json::Object(values)),
                Ok(_) => Err(Error::new(format!("the environment entry {:?} must be a JSON object", name))),
                Err(error) => Err(Error::new(format!("the environment entry {:?} is {}", name, error.message))),
            },
        };
        let (values, mut named) = (entry("args"), entry("kwargs"));
        let value_at = |place: usize| match &values {
            Ok(Json::Object(values)) => values.iter().rfind(|(key, _)| *key == place.to_string()),
            _ => None,
        };
        let (mut words, mut only_words) = (Vec::new(), false);
        for (place, text) in raw::core::get_arg().into_iter().enumerate() {
            let value = value_at(place).map(|(_, value)| value.clone());
            if text == "--" && !only_words {
                only_words = true; // all words behind it are plain
            } else {
                words.push(Word { is_plain: only_words || value.is_some(), text, value });
            }
        }
        if let (Err(error), Ok(_)) = (values, &named) {
            named = Err(error);
        }
        Args { words: RefCell::new(words), environment, named, asked: RefCell::default() }
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

    /// An error if there are arguments that nobody has asked for: call it when all were asked for.
    pub fn finish(&self) -> Result<()> {
        let asked = self.asked.borrow();
        let named = match &self.named {
            Ok(Json::Object(values)) => values.iter().map(|(name, _)| name).find(|name| !asked.contains(name)),
            Ok(_) => None,
            Err(error) => return Err(error.clone()),
        };
        match self.words.borrow().first().map(|word| &word.text).or(named) {
            Some(unknown) => Err(Error::new(format!("unexpected argument {:?}", unknown))),
            None => Ok(()),
        }
    }

    fn by_name<T: Argument>(&self, name: &str) -> Result<Option<T>> {
        self.asked.borrow_mut().push(name.to_string());
        let value = self.named.as_ref().map_err(Error::clone)?.get(name);
        let value = value.map(|value| T::from_json(value).map_err(|wanted| wrong(name, &wanted, &value.to_string())));
        let twice = || Err(Error::new(format!("{} is given twice", name)));
        let mut word = self.option::<T>(name);
        if word.is_some() && value.is_some() {
            return twice();
        }
        while let Some(Ok(said)) = &mut word {
            match self.option::<T>(name) {
                Some(more) if T::IS_LIST => said.take_more(more?),
                Some(_) => return twice(),
                None => break,
            }
        }
        value.or(word).transpose()
    }

    /// What words say of an argument by name; it takes them.
    fn option<T: Argument>(&self, name: &str) -> Option<Result<T>> {
        let (wanted, mut words) = (name.replace('-', "_"), self.words.borrow_mut());
        for place in 0..words.len() {
            if words[place].is_plain {
                continue;
            }
            let text = words[place].text.clone();
            let (key, value) = match text.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (text.as_str(), None),
            };
            let is_option = key.starts_with("--");
            let key = key.strip_prefix("--").unwrap_or(key).replace('-', "_");
            let is_denied = T::IS_FLAG && value.is_none() && key.strip_prefix("no_") == Some(wanted.as_str());
            if (key != wanted && !is_denied) || !(is_option || value.is_some()) {
                continue;
            }
            words.remove(place);
            let is_value = |next: &Word| match T::IS_FLAG {
                true => bool::from_word(&next.text).is_ok(),
                false => !next.text.starts_with("--"),
            };
            let value = match value {
                Some(value) => value.to_string(),
                None if is_denied => "false".to_string(),
                None if words.get(place).map_or(false, is_value) => words.remove(place).text,
                None if T::IS_FLAG => "true".to_string(),
                None => {
                    let advice = format!("one that begins with -- is given by --{}=VALUE", name);
                    return Some(Err(Error::new(format!("--{} needs a value; {}", name, advice))));
                }
            };
            return Some(T::from_word(&value).map_err(|wanted| wrong(name, &wanted, &value)));
        }
        None
    }

    fn next_word<T: Argument>(&self, name: &str) -> Result<Option<T>> {
        let mut words = self.words.borrow_mut();
        let place = match words.iter().position(|word| word.is_plain || !word.text.starts_with("--")) {
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
        let _ = raw::core::log(raw::core::LogLevel::Info, passed(&message.to_string()));
    }
}

fn wrong(name: &str, wanted: &str, given: &str) -> Error {
    Error::new(format!("{}: expected {}, not {:?}", name, wanted, given))
}

/// What an argument can be. The error is what was expected.
pub trait Argument: Sized {
    /// Whether its name alone says it: `--loud`, `--no-loud`.
    const IS_FLAG: bool = false;
    /// Whether it may be given several times: `--points 1 --points 2`.
    const IS_LIST: bool = false;
    /// From a word of the command line.
    fn from_word(word: &str) -> Result<Self, String>;
    /// From a value that the client has sent.
    fn from_json(value: &Json) -> Result<Self, String>;
    /// What is given after the first time. Only a list takes it.
    fn take_more(&mut self, _more: Self) {}
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
    const IS_FLAG: bool = true;

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

macro_rules! whole_numbers {
    ($($kind:ty),*) => {$(
        impl Argument for $kind {
            fn from_word(word: &str) -> Result<Self, String> {
                parsed(word, &format!("a whole number from {} to {}", <$kind>::MIN, <$kind>::MAX))
            }

            fn from_json(value: &Json) -> Result<Self, String> {
                let wanted = || format!("a whole number from {} to {}", <$kind>::MIN, <$kind>::MAX);
                value.whole().and_then(|number| Self::try_from(number).ok()).ok_or_else(wanted)
            }
        }
    )*};
}

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl Argument for $kind {
            fn from_word(word: &str) -> Result<Self, String> {
                parsed(word, "a number")
            }

            fn from_json(value: &Json) -> Result<Self, String> {
                value.as_f64().map(|number| number as $kind).ok_or_else(|| "a number".to_string())
            }
        }
    )*};
}

whole_numbers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, usize);
numbers!(f32, f64);

impl Argument for Json {
    fn from_word(word: &str) -> Result<Self, String> {
        Json::parse(word).map_err(|_| "JSON".to_string())
    }

    fn from_json(value: &Json) -> Result<Self, String> {
        Ok(value.clone())
    }
}

impl<T: Argument> Argument for Vec<T> {
    const IS_LIST: bool = true;

    fn from_word(word: &str) -> Result<Self, String> {
        if word.trim_start().starts_with('[') {
            return Self::from_json(&Json::parse(word).map_err(|_| "a list, which begins as one of JSON".to_string())?);
        }
        if word.is_empty() {
            return Ok(Vec::new());
        }
        word.split(',').map(|part| T::from_word(part.trim())).collect()
    }

    fn from_json(value: &Json) -> Result<Self, String> {
        match value {
            Json::List(items) => items.iter().map(T::from_json).collect(),
            _ => Err("a list".to_string()),
        }
    }

    fn take_more(&mut self, more: Self) {
        self.extend(more);
    }
}
