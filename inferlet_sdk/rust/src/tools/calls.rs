//! The calls in a text that a model has written, read as the Python SDK reads them.

use crate::json::Json;

const LONGEST_NAME: usize = 256;

/// A call that a model has written: arguments by name, or in the order of the tool's parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub name: String,
    pub arguments: Json,
}

/// A call that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Malformed {
    /// As far as it is known.
    pub name: String,
    /// As it was written.
    pub text: String,
    pub reason: String,
    /// Whether the text ends within it.
    pub is_cut_off: bool,
}

/// How far a call goes that begins a text.
enum Extent<'a> {
    Whole(&'a str),
    CutOff,
    /// What is there is no call.
    Other,
}

/// Reads the calls in a text that comes in pieces. How it is cut into these makes no difference.
pub(crate) struct CallReader {
    is_signature: bool,
    rest: String,    // what is not certain yet
    is_behind: bool, // whether a call has ended right before it
}

/// What has become certain: text that belongs to no call, and calls.
#[derive(Default)]
pub(crate) struct Found {
    pub plain: String,
    pub calls: Vec<Result<Call, Malformed>>,
}

impl CallReader {
    /// `is_signature`: of calls such as `name(arguments)`, else of JSON objects.
    pub fn new(is_signature: bool) -> Self {
        CallReader { is_signature, rest: String::new(), is_behind: false }
    }

    /// What has become certain with a piece of the text. A call is whole with its own end: the marker behind it may be
    /// missing.
    pub fn feed(&mut self, piece: &str) -> Found {
        let is_within = self.rest.starts_with(self.markers().0);
        self.rest += piece;
        if is_within && !piece.contains(&[')', ']', '}', '>'][..]) {
            return Found::default(); // nothing else ends a call
        }
        self.read(false)
    }

    /// What is left when the text is over.
    pub fn finish(&mut self) -> Found {
        self.read(true)
    }

    fn markers(&self) -> (&'static str, &'static str) {
        if self.is_signature {
            ("<tool>", "</tool>")
        } else {
            ("<tool_call>", "</tool_call>")
        }
    }

    fn read(&mut self, is_over: bool) -> Found {
        let ((begin, end), mut found) = (self.markers(), Found::default());
        loop {
            if self.is_behind {
                let behind = self.rest.trim_start();
                if !is_over && behind.len() < end.len() && end.starts_with(behind) {
                    return found; // its end may come
                }
                let rest = behind.strip_prefix(end).map(str::to_string);
                self.rest = rest.unwrap_or_else(|| std::mem::take(&mut self.rest));
                self.is_behind = false;
            }
            let unheld = self.rest.len() - if is_over { 0 } else { held_back(&self.rest, begin) };
            let place = self.rest.find(begin);
            found.plain.extend(self.rest.drain(..place.unwrap_or(unheld)));
            match place.and_then(|_| self.read_call(is_over)) {
                Some((call, length)) => {
                    found.calls.push(call);
                    self.rest.drain(..length);
                }
                None => return found,
            }
        }
    }

    /// The call with which the rest begins, and its length with the marker before it; None: it goes on.
    fn read_call(&mut self, is_over: bool) -> Option<(Result<Call, Malformed>, usize)> {
        let (begin, end) = self.markers();
        let behind = &self.rest[begin.len()..];
        let inner = if self.is_signature { behind } else { behind.trim_start() };
        let malformed = |text: &str, reason: &str, is_cut_off: bool| {
            let name = if self.is_signature { name_before(inner) } else { first_name(inner) };
            let (name, text, reason) = (name.unwrap_or_default(), format!("{}{}", begin, text), reason.to_string());
            Err(Malformed { name, text, reason, is_cut_off })
        };
        let length = |inner_length: usize| self.rest.len() - inner.len() + inner_length;
        let extent = if self.is_signature { signature_extent(inner) } else { object_extent(inner) };
        let (call, length) = match (extent, inner.split_once(end)) {
            (Extent::Whole(whole), _) => {
                let read = if self.is_signature { read_signature(whole) } else { read_object(whole) };
                let call = read.or_else(|reason| malformed(&format!("{}{}", whole, end), &reason, false));
                self.is_behind = true;
                return Some((call, length(whole.len())));
            }
            (Extent::Other, Some((other, _))) => {
                let expected =
                    if self.is_signature { "name(arguments)" } else { r#"JSON object {"name", "arguments"}"# };
                let reason = format!("no {} follows {}", expected, begin);
                (malformed(&format!("{}{}", other, end), &reason, false), length(other.len() + end.len()))
            }
            _ if is_over => (malformed(inner, "the text ends within the call", true), self.rest.len()),
            _ => return None,
        };
        Some((call, length))
    }
}

/// How many bytes at the end of a text may be the beginning of a marker.
fn held_back(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|count| text.ends_with(&marker[..*count])).unwrap_or(0)
}

fn signature_extent(text: &str) -> Extent<'_> {
    let place = text.find('(');
    match place.and_then(|place| value_end(&text[place..])) {
        _ if place.is_some() && name_before(text).is_none() => Extent::Other,
        _ if place.is_none() && (text.contains('<') || text.chars().count() > LONGEST_NAME) => Extent::Other,
        Some(length) => Extent::Whole(&text[..place.unwrap_or(0) + length]),
        None => Extent::CutOff,
    }
}

fn object_extent(text: &str) -> Extent<'_> {
    match value_end(text) {
        _ if !text.is_empty() && !text.starts_with('{') => Extent::Other,
        Some(length) => Extent::Whole(&text[..length]),
        None => Extent::CutOff,
    }
}

/// Where the value ends that a text begins with, by brackets and strings alone; None: it goes on.
fn value_end(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut is_escaped) = (0, false, false);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b'(' if !in_string => depth += 1,
            b'}' | b']' | b')' if !in_string => depth -= 1,
            _ => {}
        }
        if depth <= 0 && !in_string {
            return Some(place + 1);
        }
    }
    None
}

/// The name in front of a parenthesis.
fn name_before(text: &str) -> Option<String> {
    let (name, _) = text.split_once('(')?;
    let is_short = name.chars().count() <= LONGEST_NAME;
    let name = name.trim();
    let is_word = name.chars().all(|one| one == '_' || one == '-' || one.is_alphanumeric());
    let begins_well = name.chars().next().map_or(false, |one| one == '_' || one.is_alphabetic());
    Some(name.to_string()).filter(|_| is_short && is_word && begins_well)
}

/// The name of a call, where that is the first key of its object.
fn first_name(text: &str) -> Option<String> {
    let key = text.strip_prefix('{')?.trim_start().strip_prefix(r#""name""#)?.trim_start();
    let value = key.strip_prefix(':')?.trim_start();
    let length = value_end(value).filter(|_| value.starts_with('"'))?;
    Some(Json::parse(&value[..length]).ok()?.as_str()?.to_string())
}

fn read_signature(text: &str) -> Result<Call, String> {
    let (name, arguments) = text.split_once('(').unwrap_or_default();
    let inner = &arguments[..arguments.len() - 1]; // without its bracket
    let arguments = Json::parse(&format!("[{}]", inner)).map_err(|error| error.message)?;
    Ok(Call { name: name.trim().to_string(), arguments })
}

fn read_object(text: &str) -> Result<Call, String> {
    let call = Json::parse(text).map_err(|error| error.message)?;
    let name = call.get("name").and_then(Json::as_str).unwrap_or("");
    if name.is_empty() || name.chars().count() > LONGEST_NAME {
        return Err(r#"the call has no "name""#.to_string());
    }
    // Some models write the text of an object.
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        Some(Json::Text(text)) if text.trim().is_empty() => Json::Null,
        Some(Json::Text(text)) => Json::parse(text).map_err(|error| format!(r#""arguments": {}"#, error.message))?,
        given => given.cloned().unwrap_or(Json::Null),
    };
    match arguments {
        Json::Null => Ok(Call { name: name.to_string(), arguments: Json::Object(Vec::new()) }),
        Json::Object(_) => Ok(Call { name: name.to_string(), arguments }),
        _ => Err(r#""arguments" is no object"#.to_string()),
    }
}
