//! How a model is told of tools, and how it calls them: `<tool>name(1, "two")</tool>` as the demo model does, or
//! `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` as Hermes, Qwen 2.5 and 3 and many others do.

use super::calls::{CallReader, Found};
use super::Tool;
use crate::context::model::Model;
use crate::error::{Code, Error, Result};
use crate::generation::sampler::Handle;
use crate::json::Json;
use crate::raw;

/// The format of a model.
pub(crate) struct Format {
    is_signature: bool,
    /// Whether the chat template tells of tools.
    pub declares: bool,
    /// Whether it renders calls of earlier messages; else they are text.
    pub renders_calls: bool,
    /// Markers of calls that are special tokens, which the text of a generation leaves out.
    shown: Vec<(u32, &'static str)>,
}

const PROBE: &str = "pie_probe";

impl Format {
    /// That of a model, by its chat template and its vocabulary.
    pub fn of(model: &Model) -> Result<Format> {
        let queue = model.some_queue()?;
        let count = |text: &str| raw::tokenize::tokenize(queue, text, true).map(|tokens| tokens.len());
        let is_signature = count("<|tool|>")? == 1 && count("<|tool_call|>")? > 1;
        let asked = r#"{"role": "user", "content": "hi"}"#;
        let tool = format!(
            r#"[{{"type": "function", "function": {{"name": "{}", "description": "", "parameters": {{}}}}}}]"#,
            PROBE
        );
        let function = Json::object([("name", Json::from(PROBE)), ("arguments", Json::Object(Vec::new()))]);
        let call = Json::object([("id", "call00000".into()), ("type", "function".into()), ("function", function)]);
        let called = Json::object([
            ("role", Json::from("assistant")),
            ("content", Json::from("")),
            ("tool_calls", Json::List(vec![call])),
        ]);
        let renders = |messages: String, tools: &str| {
            let text = raw::tokenize::format_chat(queue, &messages, tools, false); // some refuse such messages
            text.ok().filter(|text| text.contains(PROBE))
        };
        let written = renders(format!("[{}, {}]", asked, called), "");
        if let Some(text) = &written {
            let is_known = text.split("<tool_call>").skip(1).any(|call| call.trim_start().starts_with('{'));
            if !is_known && !is_signature {
                let why = "the model's chat template writes calls of tools in a form that the Rust crate does not read";
                return Err(Error::with(Code::Unsupported, format!("{}: take the Python SDK for this model", why)));
            }
        }
        let mut shown = Vec::new();
        for marker in ["<tool_call>", "</tool_call>"] {
            let tokens = model.tokenize(marker, true)?;
            if tokens.len() == 1 && model.detokenize(&tokens)? != marker {
                shown.push((tokens[0], marker));
            }
        }
        Ok(Format {
            is_signature,
            declares: renders(format!("[{}]", asked), &tool).is_some(),
            renders_calls: written.is_some(),
            shown,
        })
    }

    /// What a system message says of tools, where the template does not.
    pub fn describe(&self, tools: &[Tool]) -> String {
        if self.is_signature {
            let lines = tools.iter().map(|tool| format!("\n{}: {}", tool.signature(), tool.description));
            return format!("Tools:{}", lines.collect::<String>());
        }
        let listed: Vec<String> = tools.iter().map(|tool| tool.declaration().to_string()).collect();
        format!(
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
             function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, \
             return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n\
             <tool_call>\n{{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>",
            listed.join("\n")
        )
    }

    /// Reads what this model writes, as it comes.
    pub fn reader(&self, model: &Model) -> Result<Reader> {
        let detokenizer = match self.shown.as_slice() {
            [] => None,
            _ => Some(Handle(raw::tokenize::create_detokenizer(model.some_queue()?)?)),
        };
        Ok(Reader { shown: self.shown.clone(), detokenizer, seen: 0, calls: CallReader::new(self.is_signature) })
    }
}

/// Reads a text with calls as it comes.
pub(crate) struct Reader {
    shown: Vec<(u32, &'static str)>,
    detokenizer: Option<Handle>,
    seen: usize,
    calls: CallReader,
}

impl Reader {
    /// The text of a further piece of a generation that has these tokens now, and what has become certain with it. None:
    /// the generation has ended.
    pub fn read(&mut self, piece: Option<String>, tokens: &[u32]) -> Result<(String, Found)> {
        let is_over = piece.is_none();
        let text = match &self.detokenizer {
            Some(detokenizer) => self.marked(detokenizer, &tokens[self.seen..])?,
            None => piece.unwrap_or_default(),
        };
        self.seen = tokens.len();
        let mut found = self.calls.feed(&text);
        if is_over {
            let rest = self.calls.finish();
            found.plain += &rest.plain;
            found.calls.extend(rest.calls);
        }
        Ok((text, found))
    }

    /// The text of tokens, with the markers that are special tokens.
    fn marked(&self, detokenizer: &Handle, tokens: &[u32]) -> Result<String> {
        let mut text = String::new();
        let marker_of = |token: &u32| self.shown.iter().find(|(one, _)| one == token).map(|(_, marker)| *marker);
        for part in tokens.split_inclusive(|token| marker_of(token).is_some()) {
            let marker = part.last().and_then(marker_of);
            let plain = &part[..part.len() - usize::from(marker.is_some())];
            text += &raw::tokenize::push_tokens(detokenizer.0, plain)?;
            text += marker.unwrap_or("");
        }
        Ok(text)
    }
}
