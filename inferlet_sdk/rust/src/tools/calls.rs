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

/// The calls in a text, and the text around them. A call is complete with its own end: the marker behind it may be
/// missing.
pub(crate) fn read_calls(text: &str, is_signature: bool) -> (String, Vec<Result<Call, Malformed>>) {
    let (begin, end) = if is_signature { ("<tool>", "</tool>") } else { ("<tool_call>", "</tool_call>") };
    let expected = if is_signature { "name(arguments)" } else { r#"JSON object {"name", "arguments"}"# };
    let (mut plain, mut calls, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, behind)) = rest.split_once(begin) {
        plain += before;
        let inner = if is_signature { behind } else { behind.trim_start() };
        let malformed = |text: &str, reason: &str, is_cut_off: bool| {
            let name = if is_signature { name_before(inner) } else { first_name(inner) };
            let (name, text, reason) = (name.unwrap_or_default(), format!("{}{}", begin, text), reason.to_string());
            Err(Malformed { name, text, reason, is_cut_off })
        };
        let cut_off = || malformed(inner, "the text ends within the call", true);
        let extent = if is_signature { signature_extent(inner) } else { object_extent(inner) };
        let (call, after) = match extent {
            Extent::Whole(whole) => {
                let after = &inner[whole.len()..];
                let after = after.trim_start().strip_prefix(end).unwrap_or(after);
                let read = if is_signature { read_signature(whole) } else { read_object(whole) };
                (read.or_else(|reason| malformed(&format!("{}{}", whole, end), &reason, false)), after)
            }
            Extent::CutOff => (cut_off(), ""),
            Extent::Other => match inner.split_once(end) {
                Some((other, after)) => {
                    let reason = format!("no {} follows {}", expected, begin);
                    (malformed(&format!("{}{}", other, end), &reason, false), after)
                }
                None => (cut_off(), ""),
            },
        };
        calls.push(call);
        rest = after;
    }
    (plain + rest, calls)
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
    let is_word = name.chars().all(|one| one == '_' || one.is_alphanumeric());
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
