//! Functions that a model may call: it is told of them, its calls are read and run, and it goes on with what they give.

mod calls;
mod format;
mod mcp;
mod schema;
mod semaphore;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use crate::context::Context;
use crate::error::{Code, Error, Result};
use crate::generation::stop::StopReason;
use crate::json::Json;
use crate::task::join_all;
use calls::{Call, Malformed};
use format::Format;
use mcp::McpServer;
use schema::{check_arguments, keys};

/// Characters of what a tool gave that the model reads.
const LONGEST_RESULT: usize = 20_000;
const LONGEST_ERROR: usize = 2000;
const LONGEST_NAME: usize = 64;

type Running = Pin<Box<dyn Future<Output = Result<String>>>>;

/// A function that a model may call.
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    schema: Json,
    run: Box<dyn Fn(Json) -> Running>,
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
    fn named(&self, given: &Json) -> Json {
        match given {
            Json::List(items) => Json::object(keys(&self.schema).into_iter().zip(items.iter().cloned())),
            other => other.clone(),
        }
    }

    /// Arguments by name, checked.
    fn bind(&self, given: &Json) -> Result<Json> {
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

/// Whether a tool may be called so.
fn is_name(name: &str) -> bool {
    let is_part = |one: u8| one.is_ascii_alphanumeric() || matches!(one, b'_' | b'-');
    let begins_well = name.bytes().next().map_or(false, |one| one.is_ascii_alphabetic() || one == b'_');
    begins_well && name.bytes().all(is_part) && name.len() <= LONGEST_NAME
}

/// A text, and how much of it was cut off.
fn cut(text: String, length: usize) -> String {
    let count = text.chars().count();
    if count <= length {
        return text;
    }
    format!("{}... ({} more characters)", text.chars().take(length).collect::<String>(), count - length)
}

/// A call of a tool, and what it gave.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// The tool.
    pub name: String,
    /// Its arguments, by name.
    pub arguments: Vec<(String, Json)>,
    /// What the model is told: the result, or what went wrong.
    pub text: String,
    /// Whether it went wrong.
    pub failed: bool,
}

/// What a model has written in one go.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Its text, without calls.
    pub text: String,
    /// Its calls, in order; none: it has answered.
    pub calls: Vec<CallResult>,
}

/// What a model has written in one go, before its calls have run.
struct Written {
    format: Format,
    text: String,
    plain: String,
    calls: Vec<Result<Call, Malformed>>,
}

/// Tools, as one model is told of them.
#[derive(Default)]
pub struct Tools {
    tools: Vec<Tool>,
}

impl Tools {
    /// These tools.
    pub fn new(tools: Vec<Tool>) -> Tools {
        Tools { tools }
    }

    /// The tools of a server that speaks MCP over HTTP, or those of the names in `only`.
    pub async fn from_mcp(url: &str, only: Option<&[&str]>) -> Result<Tools> {
        let tools = Rc::new(McpServer::start(url).await?).tools(only).await?;
        if let Some(name) = only.unwrap_or(&[]).iter().find(|name| tools.iter().all(|tool| tool.name != **name)) {
            return Err(Error::invalid(format!(
                "{} has no tool {:?}; look at what it lists without `only`",
                url, name
            )));
        }
        Ok(Tools { tools })
    }

    /// Appends a question of the user; the model is told of the tools from now on.
    pub fn ask(&self, ctx: &mut Context, question: &str) -> Result<()> {
        for (place, tool) in self.tools.iter().enumerate() {
            if !is_name(&tool.name) {
                let what = format!("{:?} cannot be a tool's name: take letters, digits, - and _", tool.name);
                return Err(Error::invalid(what));
            }
            if self.tools[..place].iter().any(|other| other.name == tool.name) {
                return Err(Error::invalid(format!("two tools are named {}: give one another name", tool.name)));
            }
        }
        let format = Format::of(ctx.model())?;
        if format.declares {
            ctx.declare_tools(self.tools.iter().map(Tool::declaration).collect());
        } else {
            ctx.describe_tools(format.describe(&self.tools));
        }
        ctx.user(question).map(|_| ())
    }

    /// One go of the model, of at most `max_tokens` tokens. Its calls are run, several beside each other, and what they
    /// give is appended. What goes wrong is told to the model. An error if `max_tokens` end a call.
    pub async fn turn(&self, ctx: &mut Context, max_tokens: usize) -> Result<Turn> {
        let written = self.write(ctx, max_tokens).await?;
        self.run(ctx, written).await
    }

    /// Asks, and takes turns until the model answers, after at most `rounds` with calls; the answer, and all calls.
    pub async fn chat(&self, ctx: &mut Context, question: &str, max_tokens: usize, rounds: usize) -> Result<Turn> {
        self.ask(ctx, question)?;
        let mut calls = Vec::new();
        for round in 0..=rounds {
            let written = self.write(ctx, max_tokens).await?;
            if written.calls.is_empty() {
                return Ok(Turn { text: written.plain, calls });
            }
            if round < rounds {
                calls.extend(self.run(ctx, written).await?.calls);
            }
        }
        Err(Error::new(format!("after {} rounds the model still calls tools: raise `rounds`", rounds)))
    }

    /// What the model writes in one go.
    async fn write(&self, ctx: &mut Context, max_tokens: usize) -> Result<Written> {
        let format = Format::of(ctx.model())?;
        let mut generation = ctx.generate(max_tokens);
        while generation.next().await?.is_some() {}
        let (tokens, reason) = (generation.tokens().to_vec(), generation.stop_reason());
        drop(generation);
        let text = format.text(ctx.model(), &tokens)?;
        let (plain, calls) = format.read(&text);
        match calls.last() {
            Some(Err(call)) if call.is_cut_off && reason == Some(StopReason::Length) => {
                let of = if call.name.is_empty() { String::new() } else { format!(" of {}", call.name) };
                Err(Error::new(format!("the text ended within a call{}: raise max_tokens ({})", of, max_tokens)))
            }
            _ => Ok(Written { format, text, plain, calls }),
        }
    }

    /// Runs what was called, and appends what that gives.
    async fn run(&self, ctx: &mut Context, written: Written) -> Result<Turn> {
        let results = join_all(written.calls.iter().map(|call| self.run_one(call))).await;
        let results = results.into_iter().collect::<Result<Vec<CallResult>>>()?;
        if !results.is_empty() {
            ctx.chat_with(Vec::new(), Some(self.reply(&written, &results)))?;
        }
        Ok(Turn { text: written.plain, calls: results })
    }

    /// What a call gives. An error only if the operator of the server does not allow it, which no model can mend.
    async fn run_one(&self, call: &Result<Call, Malformed>) -> Result<CallResult> {
        let (name, bound) = match call {
            Err(call) => (call.name.as_str(), Err(Error::new(format!("$: the call cannot be read: {}", call.reason)))),
            Ok(call) => (call.name.as_str(), self.bound(call)),
        };
        let (arguments, given) = match bound {
            Ok((tool, arguments)) => (arguments.clone(), (tool.run)(arguments).await),
            Err(error) => (Json::Null, Err(error)),
        };
        let (text, failed) = match given {
            Ok(text) => (cut(text, LONGEST_RESULT), false),
            Err(error) if error.code == Code::NotAllowed => return Err(error),
            Err(error) => (cut(format!("Error: {}", error), LONGEST_ERROR), true),
        };
        let arguments = match arguments {
            Json::Object(entries) => entries,
            _ => Vec::new(),
        };
        let name = if name.is_empty() { "invalid_call" } else { name };
        Ok(CallResult { name: name.to_string(), arguments, text, failed })
    }

    fn bound(&self, call: &Call) -> Result<(&Tool, Json)> {
        let tool = self.tool(&call.name).ok_or_else(|| {
            let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
            let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            Error::new(format!("there is no tool {:?}; there are: {}", call.name, names))
        })?;
        Ok((tool, tool.bind(&call.arguments)?))
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The arguments of a call, as the model is shown that it wrote them.
    fn shown(&self, call: &Result<Call, Malformed>) -> Json {
        match call {
            Ok(call) => match (self.tool(&call.name), &call.arguments) {
                (Some(tool), arguments) => tool.named(arguments),
                (None, Json::List(_)) => Json::Object(Vec::new()), // nobody knows their names
                (None, arguments) => arguments.clone(),
            },
            Err(call) => Json::object([("text", Json::from(cut(call.text.clone(), LONGEST_ERROR)))]),
        }
    }

    /// The messages for what the model wrote, and what its calls gave.
    fn reply(&self, written: &Written, results: &[CallResult]) -> Vec<Json> {
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        for (number, (call, result)) in written.calls.iter().zip(results).enumerate() {
            let id = format!("call{:05}", number + 1);
            let name = Json::from(result.name.as_str());
            let function = Json::object([("name", name.clone()), ("arguments", self.shown(call))]);
            calls.push(Json::object([
                ("id", Json::from(id.as_str())),
                ("type", Json::from("function")),
                ("function", function),
            ]));
            answers.push(Json::object([
                ("role", Json::from("tool")),
                ("name", name),
                ("tool_call_id", Json::from(id)),
                ("content", Json::from(result.text.as_str())),
            ]));
        }
        let mut said = vec![("role", Json::from("assistant"))];
        if written.format.renders_calls {
            said.push(("content", Json::from(written.plain.trim())));
            said.push(("tool_calls", Json::List(calls)));
        } else {
            said.push(("content", Json::from(written.text.as_str())));
        }
        let mut messages = vec![Json::object(said)];
        messages.extend(answers);
        messages
    }
}
