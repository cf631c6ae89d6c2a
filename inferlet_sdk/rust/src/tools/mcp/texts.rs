//! What a server says, as people and models read it.

use crate::error::{Code, Error};
use crate::json::Json;
use crate::tools::schema::shown;

/// Characters of what a server says of an error.
const MOST_TOLD: usize = 2000;

/// The error for a server that does what it should not.
pub(crate) fn wrong(url: &str, what: &str) -> Error {
    Error::with(Code::RequestFailed, format!("the MCP server {} {}", url, what))
}

/// A part of a result, as a model reads it. Pictures and sounds are only named.
pub(crate) fn text_of(part: &Json) -> String {
    let resource = part.get("resource");
    let text = part.get("text").and_then(Json::as_str);
    if let Some(text) = text.or_else(|| resource?.get("text")?.as_str()) {
        return text.to_string();
    }
    let about = resource.filter(|one| matches!(one, Json::Object(_))).unwrap_or(part);
    let kind = part.get("type").and_then(Json::as_str).unwrap_or("something");
    let named = ["name", "uri", "mimeType"].iter().filter_map(|key| about.get(key)?.as_str());
    format!("[{}]", [kind].into_iter().chain(named).collect::<Vec<&str>>().join(" "))
}

/// What a server says of an error, in a message of MCP or by itself.
pub(crate) fn said(body: &str) -> String {
    if let Some(error) = Json::parse(body).ok().as_ref().and_then(|value| value.get("error")) {
        return error_text(error);
    }
    let words = shortened(body).split_whitespace().collect::<Vec<&str>>().join(" ");
    if words.is_empty() {
        "it says no more".to_string()
    } else {
        words
    }
}

/// What an error of a message says.
pub(crate) fn error_text(error: &Json) -> String {
    if !matches!(error, Json::Object(_)) {
        return shown(error);
    }
    let why = match error.get("message") {
        Some(Json::Text(text)) if !text.is_empty() => shortened(text),
        None | Some(Json::Text(_)) => "it does not say why".to_string(),
        Some(other) => shown(other),
    };
    match error.get("code") {
        Some(Json::Int(code)) => format!("{} (code {})", why, code),
        _ => why,
    }
}

/// A text of a server, as far as it is told.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(MOST_TOLD).collect()
}
