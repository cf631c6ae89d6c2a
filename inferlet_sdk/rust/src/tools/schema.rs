//! Whether values keep to a JSON Schema.
//!
//! Looked at are `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, `allOf`, `anyOf`
//! and `oneOf` (as `anyOf`). What else a schema says, references included, is told to the model and not looked at.

use crate::json::Json;

const LONGEST_SHOWN: usize = 60;
/// By these a schema may name keys of an object elsewhere than in `properties`.
const ELSEWHERE: [&str; 6] = ["allOf", "anyOf", "oneOf", "patternProperties", "$ref", "$dynamicRef"];

/// A value as JSON, cut where it is long.
pub(crate) fn shown(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some(_) => text.chars().take(LONGEST_SHOWN - 3).chain("...".chars()).collect(),
        None => text,
    }
}

/// The keys that an object may have by name, in the order of the schema.
pub(crate) fn keys(schema: &Json) -> Vec<&str> {
    let properties = match schema.get("properties") {
        Some(Json::Object(entries)) => &entries[..],
        _ => &[],
    };
    let mut keys: Vec<&str> = properties.iter().map(|(key, _)| key.as_str()).collect();
    for key in required(schema) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Says what is wrong with the arguments of a function, which are the entries of an object. Others than those of the
/// schema are refused, unless it says that there may be some.
pub(crate) fn check_arguments(schema: &Json, arguments: &Json, name: &str) -> Result<(), String> {
    match arguments {
        Json::Object(entries) => {
            let has_others = ELSEWHERE.iter().any(|key| schema.get(key).is_some());
            check_object(schema, entries, "$", &format!(" of {}", name), has_others)?;
            check_parts(schema, arguments, "$")
        }
        other => Err(format!("$: expected an object ({}), got {}", name, shown(other))),
    }
}

/// Says what is wrong with a value; `path` is where it stands.
pub(crate) fn check(schema: &Json, value: &Json, path: &str) -> Result<(), String> {
    let mismatch = || Err(format!("{}: expected {}, got {}", path, wanted(schema), shown(value)));
    if values(schema).map_or(false, |values| !values.iter().any(|one| is_same(one, value))) {
        return mismatch();
    }
    let kinds = kinds(schema);
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_of(kind, value)) {
        return mismatch();
    }
    check_parts(schema, value, path)?;
    match (value, schema.get("items")) {
        (Json::Object(entries), _) => check_object(schema, entries, path, "", true),
        (Json::List(items), Some(schema)) => {
            let mut places = items.iter().enumerate();
            places.try_for_each(|(place, item)| check(schema, item, &format!("{}[{}]", path, place)))
        }
        _ => Ok(()),
    }
}

/// Says what is wrong with a value by the schemas of which a schema consists.
fn check_parts(schema: &Json, value: &Json, path: &str) -> Result<(), String> {
    let parts = |key: &str| schema.get(key).map_or(&[][..], Json::items);
    for options in [parts("anyOf"), parts("oneOf")] {
        if !options.is_empty() && options.iter().all(|option| check(option, value, path).is_err()) {
            return Err(format!("{}: expected {}, got {}", path, wanted(schema), shown(value)));
        }
    }
    parts("allOf").iter().try_for_each(|part| check(part, value, path))
}

fn check_object(
    schema: &Json,
    entries: &[(String, Json)],
    path: &str,
    of: &str,
    others_by_default: bool,
) -> Result<(), String> {
    let is_open = schema.get("patternProperties").is_some(); // which patterns a key matches is not looked at
    let (keys, rest) = (keys(schema), schema.get("additionalProperties").filter(|_| !is_open));
    let has_others = rest.map_or(others_by_default || is_open, |rest| *rest != Json::Bool(false));
    let property = |key: &str| schema.get("properties").and_then(|all| all.get(key));
    if let Some(key) = required(schema).find(|key| entries.iter().all(|(one, _)| one != key)) {
        let wanted = property(key).map_or("anything".to_string(), wanted);
        return Err(format!("{}: {} is missing: expected {}", path, Json::from(key), wanted));
    }
    for (key, value) in entries {
        let is_known = keys.contains(&key.as_str());
        let path = format!("{}{}", path, step(key));
        if !is_known && !has_others {
            let known = if keys.is_empty() { "there are none".to_string() } else { "there are ".to_string() };
            return Err(format!("{}: no such key{}; {}{}", path, of, known, keys.join(", ")));
        }
        if let Some(schema) = property(key).or(if is_known { None } else { rest }) {
            check(schema, value, &path)?;
        }
    }
    Ok(())
}

fn required(schema: &Json) -> impl Iterator<Item = &str> {
    schema.get("required").map_or(&[][..], Json::items).iter().filter_map(Json::as_str)
}

/// The values of which one is allowed; None: any.
fn values(schema: &Json) -> Option<&[Json]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Json::List(values))) => Some(values),
        _ => None,
    }
}

/// Whether two values are equal; numbers are by what they count.
fn is_same(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Int(whole), Json::Float(number)) | (Json::Float(number), Json::Int(whole)) => *whole as f64 == *number,
        _ => one == other,
    }
}

/// Names of the types of which one is allowed; none: any.
fn kinds(schema: &Json) -> Vec<&str> {
    match schema.get("type") {
        Some(Json::List(kinds)) => kinds.iter().filter_map(Json::as_str).collect(),
        kind => kind.and_then(Json::as_str).into_iter().collect(),
    }
}

/// Whether a value is of a type. Any is of one that has no meaning.
fn is_of(kind: &str, value: &Json) -> bool {
    match kind {
        "string" => matches!(value, Json::Text(_)),
        "integer" => match value {
            Json::Float(number) => number.fract() == 0.0,
            other => matches!(other, Json::Int(_)),
        },
        "number" => matches!(value, Json::Int(_) | Json::Float(_)),
        "boolean" => matches!(value, Json::Bool(_)),
        "null" => *value == Json::Null,
        "array" => matches!(value, Json::List(_)),
        "object" => matches!(value, Json::Object(_)),
        _ => true,
    }
}

/// What a schema takes, for messages.
fn wanted(schema: &Json) -> String {
    if let Some(values) = values(schema) {
        return format!("one of {}", values.iter().map(shown).collect::<Vec<String>>().join(", "));
    }
    let named = kinds(schema).into_iter().map(|kind| match kind {
        "string" => "a string".to_string(),
        "integer" => "an integer".to_string(),
        "number" => "a number".to_string(),
        "boolean" => "true or false".to_string(),
        "array" => "a list".to_string(),
        "object" => "an object".to_string(),
        other => other.to_string(),
    });
    let mut all: Vec<String> = named.collect();
    if all.is_empty() {
        let options = schema.get("anyOf").or_else(|| schema.get("oneOf")).map_or(&[][..], Json::items);
        all = options.iter().map(wanted).collect();
    }
    match all.is_empty() {
        true => "anything".to_string(),
        false => all.join(" or "),
    }
}

/// A key, as a path has it.
fn step(key: &str) -> String {
    let is_word = key.chars().all(|one| one == '_' || one.is_alphanumeric());
    match is_word && key.chars().next().map_or(false, |one| one == '_' || one.is_ascii_alphabetic()) {
        true => format!(".{}", key),
        false => format!("[{}]", Json::from(key)),
    }
}
