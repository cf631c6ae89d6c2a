//! JSON values: what crosses to the host as text, arguments and results.

use std::fmt::{self, Write};

use crate::error::{Error, Result};

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number.
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

    /// The entry of an object; None if there is none, or it is null.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(entries) => entries
                .iter()
                .find(|(name, _)| name == key)
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

    /// It as a whole number.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Json::Int(number) => Some(*number),
            Json::Float(number) if number.fract() == 0.0 => Some(*number as i64),
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
        while matches!(self.peek(), b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9') {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        let whole = text.parse().ok().map(Json::Int);
        whole.or_else(|| text.parse().ok().map(Json::Float)).ok_or_else(|| self.wrong("a number"))
    }

    fn string(&mut self) -> Result<String> {
        let mut found = String::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(['"', '\\']).ok_or_else(|| self.wrong("'\"'"))?;
            found.push_str(&rest[..plain]);
            self.at += plain + 1;
            if rest.as_bytes()[plain] == b'"' {
                return Ok(found);
            }
            found.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Result<char> {
        let letter = self.peek();
        self.at += usize::from(letter.is_ascii() && letter != 0);
        Ok(match letter {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'"' | b'\\' | b'/' => char::from(letter),
            b'u' => {
                let first = self.hexadecimal()?;
                let is_half = (0xd800..0xdc00).contains(&first) && self.takes("\\u");
                let code =
                    if is_half { 0x10000 + ((first - 0xd800) << 10) + (self.hexadecimal()? & 0x3ff) } else { first };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(self.wrong("an escaped character")),
        })
    }

    fn hexadecimal(&mut self) -> Result<u32> {
        let digits = self.text.get(self.at..self.at + 4).ok_or_else(|| self.wrong("four digits"))?;
        let code = u32::from_str_radix(digits, 16).map_err(|_| self.wrong("four digits"))?;
        self.at += 4;
        Ok(code)
    }
}

/// What can be written as JSON: the result of a program, the arguments of a child.
pub trait ToJson {
    /// It as JSON.
    fn to_json(&self) -> Json;
}

macro_rules! to_json {
    ($($kind:ty: $value:ident => $json:expr;)*) => {$(
        impl ToJson for $kind {
            fn to_json(&self) -> Json {
                let $value = self;
                $json
            }
        }
        impl From<$kind> for Json {
            fn from(value: $kind) -> Json {
                value.to_json()
            }
        }
    )*};
}

to_json! {
    (): _one => Json::Null;
    bool: one => Json::Bool(*one);
    i32: one => Json::Int(i64::from(*one));
    u32: one => Json::Int(i64::from(*one));
    i64: one => Json::Int(*one);
    usize: one => Json::Int(*one as i64);
    u64: one => Json::Int(*one as i64);
    f32: one => Json::Float(f64::from(*one));
    f64: one => Json::Float(*one);
    String: one => Json::Text(one.clone());
    &str: one => Json::Text((*one).to_string());
}

impl ToJson for Json {
    fn to_json(&self) -> Json {
        self.clone()
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, ToJson::to_json)
    }
}

impl<T: ToJson> ToJson for Vec<T> {
    fn to_json(&self) -> Json {
        Json::List(self.iter().map(ToJson::to_json).collect())
    }
}
