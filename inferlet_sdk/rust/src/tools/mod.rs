//! Functions that a model may call: it is told of them, its calls are read and run, and it goes on with what they give.

mod calls;
mod format;
mod mcp;
mod schema;
mod tool;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::args::Args;
use crate::context::model::Model;
use crate::context::Context;
use crate::error::{Code, Error, Result};
use crate::generation::stop::StopReason;
use crate::json::Json;
use crate::outside::clock::spanned;
use crate::raw;
use crate::task::Tasks;
use calls::{Call, Malformed};
use format::Format;
use mcp::McpServer;
use tool::is_name;
pub use tool::Tool;

/// Characters of what a tool gave that the model reads.
const LONGEST_RESULT: usize = 20_000;
const LONGEST_ERROR: usize = 2000;
/// Of a request to a server.
const SECONDS: f64 = 60.0;

/// A text, and how much of it was cut off.
fn cut(text: String, length: usize) -> String {
    let count = text.chars().count();
    if count <= length {
        return text;
    }
    format!("{}... ({} more characters)", text.chars().take(length).collect::<String>(), count - length)
}

fn name_of(call: &Result<Call, Malformed>) -> &str {
    call.as_ref().map_or_else(|call| call.name.as_str(), |call| call.name.as_str())
}

/// An error for a call that `max_tokens` have cut off.
fn check_whole(call: &Result<Call, Malformed>, reason: Option<StopReason>, max_tokens: usize) -> Result<()> {
    match call {
        Err(call) if call.is_cut_off && reason == Some(StopReason::Length) => {
            let of = if call.name.is_empty() { String::new() } else { format!(" of {}", call.name) };
            Err(Error::new(format!("the text ended within a call{}: raise max_tokens ({})", of, max_tokens)))
        }
        _ => Ok(()),
    }
}

/// The error for a call of this name that is one too many.
fn too_many_rounds(name: &str, calls: &[CallResult]) -> Error {
    let wanted = if name.is_empty() { "a tool" } else { name };
    let failed: Vec<&CallResult> = calls.iter().filter(|call| call.failed).collect();
    let last = failed
        .last()
        .map_or(String::new(), |last| format!(". {} failed, the last one {}: {}", failed.len(), last.name, last.text));
    Error::new(format!(
        "after all rounds, with {} calls, the model wants to call {} again: raise `rounds`, or tell it when to answer{}",
        calls.len(),
        wanted,
        last
    ))
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

/// What a model writes in one go, and what its calls give.
struct Written {
    format: Rc<Format>,
    text: String,
    plain: String,
    calls: Vec<Result<Call, Malformed>>,
    results: Vec<CallResult>,
}

/// Tools, as one model is told of them.
#[derive(Default)]
pub struct Tools {
    tools: Vec<Tool>,
    called: Cell<usize>,                              // how many calls were answered
    format: RefCell<Option<(Rc<Model>, Rc<Format>)>>, // of the model that was told last
}

impl Tools {
    /// These tools.
    pub fn new(tools: Vec<Tool>) -> Tools {
        Tools { tools, ..Tools::default() }
    }

    /// The tools of a server that speaks MCP over HTTP, or those of the names in `only`.
    pub async fn from_mcp(url: &str, only: Option<&[&str]>) -> Result<Tools> {
        Self::from_mcp_with(url, only, &[], SECONDS).await
    }

    /// As `from_mcp`; these headers go with each request, such as `Authorization`, which may take so many seconds.
    pub async fn from_mcp_with(
        url: &str,
        only: Option<&[&str]>,
        headers: &[(&str, &str)],
        seconds: f64,
    ) -> Result<Tools> {
        Ok(Tools::new(Rc::new(McpServer::start(url, headers, seconds).await?).tools(only).await?))
    }

    /// Appends a question of the user; the model is told of the tools from now on.
    pub fn ask(&self, ctx: &mut Context, question: &str) -> Result<()> {
        self.declare(ctx)?;
        ctx.user(question).map(|_| ())
    }

    /// The model is told of the tools with the next message. Before `resume_chat`: the chat tells of them.
    pub fn declare(&self, ctx: &mut Context) -> Result<()> {
        for (place, tool) in self.tools.iter().enumerate() {
            if !is_name(&tool.name) {
                let what = format!("{:?} cannot be a tool's name: take letters, digits, - and _", tool.name);
                return Err(Error::invalid(what));
            }
            if self.tools[..place].iter().any(|other| other.name == tool.name) {
                return Err(Error::invalid(format!("two tools are named {}: give one another name", tool.name)));
            }
        }
        let format = self.format_of(ctx.model())?;
        if format.declares {
            ctx.declare_tools(self.tools.iter().map(Tool::declaration).collect());
        } else {
            ctx.describe_tools(format.describe(&self.tools));
        }
        Ok(())
    }

    /// One go of the model, of at most `max_tokens` tokens. Each call runs as soon as it is written, beside others, and
    /// what they give is appended. What goes wrong is told to the model. An error if `max_tokens` end a call.
    pub async fn turn(&self, ctx: &mut Context, max_tokens: usize) -> Result<Turn> {
        let written = self.write(ctx, max_tokens, None, |_| Ok(())).await?;
        Ok(Turn { text: written.plain, calls: written.results })
    }

    /// Asks, and takes turns until the model answers, after at most `rounds` with calls; the answer, and all calls.
    pub async fn chat(&self, ctx: &mut Context, question: &str, max_tokens: usize, rounds: usize) -> Result<Turn> {
        self.talk(ctx, question, max_tokens, rounds, None).await
    }

    /// As `chat`; the text goes to the client as it comes.
    pub async fn stream(
        &self,
        ctx: &mut Context,
        question: &str,
        max_tokens: usize,
        rounds: usize,
        args: &Args,
    ) -> Result<Turn> {
        self.talk(ctx, question, max_tokens, rounds, Some(args)).await
    }

    async fn talk(
        &self,
        ctx: &mut Context,
        question: &str,
        max_tokens: usize,
        rounds: usize,
        to: Option<&Args>,
    ) -> Result<Turn> {
        self.ask(ctx, question)?;
        let (mut calls, mut rounds_left) = (Vec::new(), rounds);
        loop {
            let check = |name: &str| if rounds_left > 0 { Ok(()) } else { Err(too_many_rounds(name, &calls)) };
            let mut written = self.write(ctx, max_tokens, to, check).await?;
            if written.results.is_empty() {
                return Ok(Turn { text: written.plain, calls });
            }
            calls.append(&mut written.results);
            rounds_left -= 1;
        }
    }

    /// What the model writes in one go, and what its calls give, which is appended. `check`: of the name of a call, an
    /// error if there may be none. `to`: who gets the text.
    async fn write(
        &self,
        ctx: &mut Context,
        max_tokens: usize,
        to: Option<&Args>,
        check: impl Fn(&str) -> Result<()>,
    ) -> Result<Written> {
        let format = self.format_of(ctx.model())?;
        let mut reader = format.reader(ctx.model())?;
        let (mut text, mut plain, mut calls) = (String::new(), String::new(), Vec::new());
        let mut tasks = Tasks::new();
        let mut generation = ctx.generate(max_tokens);
        loop {
            let piece = tasks.beside(generation.next()).await?;
            let is_over = piece.is_none();
            let (read, found) = reader.read(piece, generation.tokens())?;
            text += &read;
            plain += &found.plain;
            if let (Some(args), false) = (to, found.plain.is_empty()) {
                tasks.beside(args.send(&found.plain)).await?;
            }
            for call in found.calls {
                check_whole(&call, generation.stop_reason(), max_tokens)?;
                check(name_of(&call))?;
                let (number, again) = (calls.len(), call.clone());
                tasks.add(async move { self.run_one(&again).await.map(|result| (number, result)) });
                calls.push(call);
            }
            if is_over {
                break;
            }
        }
        drop(generation);
        let mut results = Vec::new();
        while let Some(result) = tasks.next().await {
            results.push(result?);
        }
        results.sort_by_key(|(number, _)| *number);
        let results = results.into_iter().map(|(_, result)| result).collect();
        let written = Written { format, text, plain, calls, results };
        if !written.calls.is_empty() {
            ctx.chat_with(Vec::new(), Some(self.reply(&written)))?;
        }
        Ok(written)
    }

    /// What a call gives. An error only if the operator of the server does not allow it, which no model can mend.
    async fn run_one(&self, call: &Result<Call, Malformed>) -> Result<CallResult> {
        let (name, bound) = match call {
            Err(call) => (call.name.as_str(), Err(Error::new(format!("$: the call cannot be read: {}", call.reason)))),
            Ok(call) => (call.name.as_str(), self.bound(call)),
        };
        let (arguments, given) = match bound {
            Ok((tool, arguments)) => (arguments.clone(), spanned("execute_tool", name, (tool.run)(arguments)).await),
            Err(error) => (Json::Null, Err(error)),
        };
        let (text, failed) = match given {
            Ok(text) => (cut(text, LONGEST_RESULT), false),
            Err(error) if error.code == Code::NotAllowed => return Err(error),
            Err(error) => (cut(format!("Error: {}", error), LONGEST_ERROR), true),
        };
        if failed {
            let name = if name.is_empty() { "without a name" } else { name };
            let _ = raw::core::log(raw::core::LogLevel::Warning, &format!("tool {}: {}", name, text));
        }
        let arguments = match arguments {
            Json::Object(entries) => entries,
            _ => Vec::new(),
        };
        let name = if name.is_empty() { "invalid_call" } else { name };
        Ok(CallResult { name: name.to_string(), arguments, text, failed })
    }

    /// The format of a model, for which its template is rendered once.
    fn format_of(&self, model: &Rc<Model>) -> Result<Rc<Format>> {
        let known = self.format.borrow().clone();
        if let Some((_, format)) = known.filter(|(one, _)| Rc::ptr_eq(one, model)) {
            return Ok(format);
        }
        let format = Rc::new(Format::of(model)?);
        self.format.replace(Some((model.clone(), format.clone())));
        Ok(format)
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
    fn reply(&self, written: &Written) -> Vec<Json> {
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        for (call, result) in written.calls.iter().zip(&written.results) {
            self.called.set(self.called.get() + 1);
            let id = format!("call{:05}", self.called.get() % 100_000); // nine letters: Mistral wants them
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
