//! A function that a model may call: how it is told of it, and its arguments.

use std::future::Future;
use std::pin::Pin;

use super::schema::{check_arguments, keys};
use crate::error::{Error, Result};
use crate::json::Json;

const LONGEST_NAME: usize = 64;

type Running = Pin<Box<dyn Future<Output = Result<String>>>>;

/// A function that a model may call.
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    schema: Json,
    pub(super) run: Box<dyn Fn(Json) -> Running>,
}

impl Tool {
    /// `schema`: the JSON schema of its arguments, an object; `run` gets these by name, of the types that it says. The
    /// name is of letters, digits, - and _.
    pub fn new<F: Future<Output = Result<String>> + 'static>(
        name: &str,
        description: &str,
        schema: Json,
        run: impl Fn(Json) -> F + 'static,
    ) -> Tool {
        let run: Box<dyn Fn(Json) -> Running> = Box::new(move |arguments| Box::pin(run(arguments)));
        Tool { name: name.to_string(), description: description.to_string(), schema, run }
    }

    /// Name and parameters, as in `add(a, b)`.
    pub(crate) fn signature(&self) -> String {
        format!("{}({})", self.name, keys(&self.schema).join(", "))
    }

    /// As chat templates take it.
    pub(crate) fn declaration(&self) -> Json {
        let function = Json::object([
            ("name", Json::from(self.name.as_str())),
            ("description", Json::from(self.description.as_str())),
            ("parameters", self.schema.clone()),
        ]);
        Json::object([("type", Json::from("function")), ("function", function)])
    }

    /// Arguments by name; a list has them in the order of the parameters.
    pub(super) fn named(&self, given: &Json) -> Json {
        match given {
            Json::List(items) => Json::object(keys(&self.schema).into_iter().zip(items.iter().cloned())),
            other => other.clone(),
        }
    }

    /// Arguments by name, checked.
    pub(super) fn bind(&self, given: &Json) -> Result<Json> {
        let most = keys(&self.schema).len();
        if given.items().len() > most {
            let count = given.items().len();
            return Err(Error::new(format!("$: {} takes {} arguments, not {}", self.signature(), most, count)));
        }
        let arguments = self.named(given);
        check_arguments(&self.schema, &arguments, &self.name).map_err(Error::new)?;
        Ok(arguments)
    }
}

/// What a model calls the tool of a server, whose name may have other signs, too. A number is behind it where another
/// tool has the name.
pub(crate) fn name_of(name: &str, others: &[Tool]) -> String {
    let begins_well = name.starts_with(|one: char| one.is_ascii_alphabetic() || one == '_');
    let letters = name.chars().map(|one| if one.is_ascii_alphanumeric() || one == '-' { one } else { '_' });
    let before = if begins_well { "" } else { "_" };
    let found: String = before.chars().chain(letters).take(LONGEST_NAME).collect();
    let begin = &found[..found.len().min(LONGEST_NAME - 8)];
    let numbered = (others.len() + 1..).map(|number| format!("{}_{}", begin, number));
    let mut names = [found.clone()].into_iter().chain(numbered);
    names.find(|one| others.iter().all(|other| other.name != *one)).expect("there are more numbers than tools")
}

/// Whether a tool may be called so.
pub(crate) fn is_name(name: &str) -> bool {
    let is_part = |one: u8| one.is_ascii_alphanumeric() || matches!(one, b'_' | b'-');
    let begins_well = name.bytes().next().map_or(false, |one| one.is_ascii_alphabetic() || one == b'_');
    begins_well && name.bytes().all(is_part) && name.len() <= LONGEST_NAME
}
