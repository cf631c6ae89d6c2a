//! JSON values: what crosses to the host as text, arguments and results.

use std::fmt::{self, Write};

use crate::error::{Error, Result};

mod values;

pub use values::ToJson;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Another number, or a whole one that is larger; what is not finite is written as `null`.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object; its keys keep their order.
    Object(Vec<(String, Json)>),
}

/// Deepest nesting that is read.
const MOST_LEVELS: usize = 128;

impl Json {
    /// Reads a text.
    pub fn parse(text: &str) -> Result<Json> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.blank();
        if reader.at < text.len() {
            return Err(reader.wrong("the end"));
        }
        Ok(value)
    }

    /// An object of these entries.
    pub fn object<K: Into<String>>(entries: impl IntoIterator<Item = (K, Json)>) -> Json {
        Json::Object(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// The entry of an object, the last one of this key; None if there is none, or it is null.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(entries) => entries
                .iter()
                .rfind(|(name, _)| name == key)
                .map(|(_, value)| value)
                .filter(|value| **value != Json::Null),
            _ => None,
        }
    }

    /// The items of a list; none of anything else.
    pub fn items(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    /// It as a text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// It as a whole number, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.whole().and_then(|number| i64::try_from(number).ok())
    }

    pub(crate) fn whole(&self) -> Option<i128> {
        match self {
            Json::Int(number) => Some(*number),
            Json::Float(number) if number.fract() == 0.0 && number.abs() < i128::MAX as f64 => Some(*number as i128),
            _ => None,
        }
    }

    /// It as a number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Json::Int(number) => Some(*number as f64),
            Json::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// It as a truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Json::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => to.write_str("null"),
            Json::Bool(value) => write!(to, "{}", value),
            Json::Int(number) => write!(to, "{}", number),
            Json::Float(number) if number.is_finite() => write!(to, "{:?}", number),
            Json::Float(_) => to.write_str("null"),
            Json::Text(text) => write_text(to, text),
            Json::List(items) => {
                to.write_char('[')?;
                for (place, item) in items.iter().enumerate() {
                    to.write_str(if place > 0 { ", " } else { "" })?;
                    item.fmt(to)?;
                }
                to.write_char(']')
            }
            Json::Object(entries) => {
                to.write_char('{')?;
                for (place, (key, value)) in entries.iter().enumerate() {
                    to.write_str(if place > 0 { ", " } else { "" })?;
                    write_text(to, key)?;
                    to.write_str(": ")?;
                    value.fmt(to)?;
                }
                to.write_char('}')
            }
        }
    }
}

fn write_text(to: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    to.write_char('"')?;
    for letter in text.chars() {
        match letter {
            '"' => to.write_str("\\\"")?,
            '\\' => to.write_str("\\\\")?,
            '\n' => to.write_str("\\n")?,
            letter if letter < ' ' => write!(to, "\\u{:04x}", letter as u32)?,
            letter => to.write_char(letter)?,
        }
    }
    to.write_char('"')
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, wanted: &str) -> Error {
        Error::invalid(format!("not JSON: expected {} at byte {}", wanted, self.at))
    }

    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn blank(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn takes(&mut self, wanted: &str) -> bool {
        let found = self.text[self.at..].starts_with(wanted);
        if found {
            self.at += wanted.len();
        }
        found
    }

    fn value(&mut self, level: usize) -> Result<Json> {
        if level > MOST_LEVELS {
            return Err(Error::invalid(format!("JSON is nested deeper than {} levels", MOST_LEVELS)));
        }
        self.blank();
        match self.peek() {
            b'{' => self.object(level),
            b'[' => self.list(level),
            b'"' => self.string().map(Json::Text),
            b'-' | b'0'..=b'9' => self.number(),
            _ if self.takes("null") => Ok(Json::Null),
            _ if self.takes("true") => Ok(Json::Bool(true)),
            _ if self.takes("false") => Ok(Json::Bool(false)),
            _ => Err(self.wrong("a value")),
        }
    }

    fn object(&mut self, level: usize) -> Result<Json> {
        let mut entries = Vec::new();
        self.at += 1;
        loop {
            self.blank();
            if entries.is_empty() && self.takes("}") {
                return Ok(Json::Object(entries));
            }
            if self.peek() != b'"' {
                return Err(self.wrong("a key"));
            }
            let key = self.string()?;
            self.blank();
            if !self.takes(":") {
                return Err(self.wrong("':'"));
            }
            entries.push((key, self.value(level + 1)?));
            self.blank();
            if self.takes("}") {
                return Ok(Json::Object(entries));
            }
            if !self.takes(",") {
                return Err(self.wrong("',' or '}'"));
            }
        }
    }

    fn list(&mut self, level: usize) -> Result<Json> {
        let mut items = Vec::new();
        self.at += 1;
        loop {
            self.blank();
            if items.is_empty() && self.takes("]") {
                return Ok(Json::List(items));
            }
            items.push(self.value(level + 1)?);
            self.blank();
            if self.takes("]") {
                return Ok(Json::List(items));
            }
            if !self.takes(",") {
                return Err(self.wrong("',' or ']'"));
            }
        }
    }

    fn number(&mut self) -> Result<Json> {
        let start = self.at;
        self.takes("-");
        if !self.takes("0") {
            self.digits()?;
        }
        let before = self.at;
        if self.takes(".") {
            self.digits()?;
        }
        if self.takes("e") || self.takes("E") {
            let _sign = self.takes("-") || self.takes("+");
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        let whole = if self.at == before { text.parse().ok() } else { None };
        let float = || text.parse().ok().filter(|number: &f64| number.is_finite());
        let number = whole.map(Json::Int).or_else(|| float().map(Json::Float));
        number.ok_or_else(|| Error::invalid(format!("the number at byte {} of the JSON text is too large", start)))
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.wrong("a digit"));
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String> {
        let mut found = String::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|letter| letter == '"' || letter == '\\' || letter < ' ');
            let plain = plain.ok_or_else(|| self.wrong("'\"'"))?;
            found.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(found);
                }
                b'\\' => {
                    self.at += 1;
                    found.push(self.escaped()?);
                }
                _ => return Err(self.wrong("no control character: write it as \\n, \\t or \\u00XX")),
            }
        }
    }

    fn escaped(&mut self) -> Result<char> {
        let letter = self.peek();
        let found = match letter {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'"' | b'\\' | b'/' => char::from(letter),
            b'u' => return self.code(),
            _ => return Err(self.wrong("an escaped character")),
        };
        self.at += 1;
        Ok(found)
    }

    /// A character by its code, or two halves of it; half of one is no character.
    fn code(&mut self) -> Result<char> {
        let first = self.hexadecimal()?;
        let behind = self.at;
        if (0xd800..0xdc00).contains(&first) && self.text[behind..].starts_with("\\u") {
            self.at += 1;
            let second = self.hexadecimal()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).expect("two halves are a character"));
            }
            self.at = behind; // it is no half of this one
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// The number behind `u`.
    fn hexadecimal(&mut self) -> Result<u32> {
        self.at += 1;
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += if code.is_some() { 4 } else { 0 };
        code.ok_or_else(|| self.wrong("four hexadecimal digits"))
    }
}

/// A number that the host is told, of this name: one that is not finite would be left out.
pub(crate) fn finite(name: &str, number: f64) -> Result<Json> {
    if !number.is_finite() {
        return Err(Error::invalid(format!("{} is {}: give a finite number", name, number)));
    }
    Ok(Json::Float(number))
}
