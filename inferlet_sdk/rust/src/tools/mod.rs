//! Functions that a model may call: it is told of them, its calls are read and run, and it goes on with what they give.

mod format;
mod mcp;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use crate::context::Context;
use crate::error::{Code, Error, Result};
use crate::json::Json;
use crate::task::join_all;
use format::{Call, Format};
use mcp::McpServer;

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
    /// `schema`: the JSON schema of its arguments, an object; `run` gets these by name.
    pub fn new<F: Future<Output = Result<String>> + 'static>(
        name: &str,
        description: &str,
        schema: Json,
        run: impl Fn(Json) -> F + 'static,
    ) -> Tool {
        let run: Box<dyn Fn(Json) -> Running> = Box::new(move |arguments| Box::pin(run(arguments)));
        Tool { name: name.to_string(), description: description.to_string(), schema, run }
    }

    /// Names of its parameters.
    pub(crate) fn parameters(&self) -> Vec<String> {
        match self.schema.get("properties") {
            Some(Json::Object(entries)) => entries.iter().map(|(name, _)| name.clone()).collect(),
            _ => Vec::new(),
        }
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

    /// Arguments by name, checked as far as the schema's names go.
    fn bind(&self, given: &Json) -> Result<Json> {
        let names = self.parameters();
        let entries = match given {
            Json::Object(entries) => entries.clone(),
            other => names.iter().cloned().zip(other.items().iter().cloned()).collect(),
        };
        if given.items().len() > names.len() {
            return Err(Error::invalid(format!("{} takes {} arguments", self.name, names.len())));
        }
        if let Some((name, _)) = entries.iter().find(|(name, _)| !names.contains(name)) {
            return Err(Error::invalid(format!("{} has no parameter {:?}", self.name, name)));
        }
        let required = self.schema.get("required").map_or(&[][..], Json::items);
        let missing = required.iter().filter_map(Json::as_str).find(|name| entries.iter().all(|(one, _)| one != name));
        match missing {
            Some(name) => Err(Error::invalid(format!("{} needs the argument {:?}", self.name, name))),
            None => Ok(Json::Object(entries)),
        }
    }
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
        let server = Rc::new(McpServer::start(url).await?);
        let mut tools = Vec::new();
        for told in server.tools().await? {
            let text = |key: &str| told.get(key).and_then(Json::as_str).unwrap_or("").to_string();
            let name = text("name");
            if name.is_empty() || only.map_or(false, |only| !only.contains(&name.as_str())) {
                continue;
            }
            let schema = told.get("inputSchema").cloned().unwrap_or_else(|| Json::Object(Vec::new()));
            let server = server.clone();
            tools.push(Tool::new(&name.clone(), &text("description"), schema, move |arguments| {
                let (server, name) = (server.clone(), name.clone());
                async move { server.call(&name, arguments).await }
            }));
        }
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
        let format = Format::of(ctx.model())?;
        if format.declares {
            ctx.declare_tools(self.tools.iter().map(Tool::declaration).collect());
        } else {
            ctx.describe_tools(format.describe(&self.tools));
        }
        ctx.user(question).map(|_| ())
    }

    /// One go of the model, of at most `max_tokens` tokens. Its calls are run, several beside each other, and what they
    /// give is appended. What goes wrong is told to the model.
    pub async fn turn(&self, ctx: &mut Context, max_tokens: usize) -> Result<Turn> {
        let format = Format::of(ctx.model())?;
        let mut generation = ctx.generate(max_tokens);
        while generation.next().await?.is_some() {}
        let tokens = generation.tokens().to_vec();
        drop(generation);
        let text = format.text(ctx.model(), &tokens)?;
        let (plain, calls) = format.read(&text);
        let results = join_all(calls.iter().map(|call| self.run(call))).await;
        let results = results.into_iter().collect::<Result<Vec<CallResult>>>()?;
        if !results.is_empty() {
            ctx.chat_with(Vec::new(), Some(reply(&format, &text, &plain, &results)))?;
        }
        Ok(Turn { text: plain, calls: results })
    }

    /// Asks, and takes turns until the model answers, after at most `rounds` with calls; the answer, and all calls.
    pub async fn chat(&self, ctx: &mut Context, question: &str, max_tokens: usize, rounds: usize) -> Result<Turn> {
        self.ask(ctx, question)?;
        let mut calls = Vec::new();
        for _ in 0..=rounds {
            let turn = self.turn(ctx, max_tokens).await?;
            if turn.calls.is_empty() {
                return Ok(Turn { text: turn.text, calls });
            }
            calls.extend(turn.calls);
        }
        Err(Error::new(format!("after {} rounds the model still calls tools: raise `rounds`", rounds)))
    }

    /// What a call gives. An error only if the operator of the server does not allow it, which no model can mend.
    async fn run(&self, call: &Result<Call, String>) -> Result<CallResult> {
        let (name, bound) = match call {
            Err(text) => ("invalid_call", Err(Error::invalid(format!("the call cannot be read: {}", text)))),
            Ok(call) => (call.name.as_str(), self.bound(call)),
        };
        let (arguments, given) = match bound {
            Ok((tool, arguments)) => (arguments.clone(), (tool.run)(arguments).await),
            Err(error) => (Json::Null, Err(error)),
        };
        let (text, failed) = match given {
            Ok(text) => (text, false),
            Err(error) if error.code == Code::NotAllowed => return Err(error),
            Err(error) => (format!("Error: {}", error), true),
        };
        let arguments = match arguments {
            Json::Object(entries) => entries,
            _ => Vec::new(),
        };
        Ok(CallResult { name: name.to_string(), arguments, text, failed })
    }

    fn bound(&self, call: &Call) -> Result<(&Tool, Json)> {
        let tool = self.tools.iter().find(|tool| tool.name == call.name);
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        let tool = tool
            .ok_or_else(|| Error::new(format!("there is no tool {:?}; there are: {}", call.name, names.join(", "))))?;
        Ok((tool, tool.bind(&call.arguments)?))
    }
}

/// The messages for what the model wrote, and what its calls gave.
fn reply(format: &Format, text: &str, plain: &str, results: &[CallResult]) -> Vec<Json> {
    let (mut calls, mut answers) = (Vec::new(), Vec::new());
    for (number, result) in results.iter().enumerate() {
        let id = format!("call{:05}", number + 1);
        let function = Json::object([
            ("name", Json::from(result.name.as_str())),
            ("arguments", Json::Object(result.arguments.clone())),
        ]);
        calls.push(Json::object([
            ("id", Json::from(id.as_str())),
            ("type", Json::from("function")),
            ("function", function),
        ]));
        answers.push(Json::object([
            ("role", Json::from("tool")),
            ("name", Json::from(result.name.as_str())),
            ("tool_call_id", Json::from(id)),
            ("content", Json::from(result.text.as_str())),
        ]));
    }
    let mut said = vec![("role", Json::from("assistant"))];
    if format.renders_calls {
        said.push(("content", Json::from(plain.trim())));
        said.push(("tool_calls", Json::List(calls)));
    } else {
        said.push(("content", Json::from(text)));
    }
    let mut messages = vec![Json::object(said)];
    messages.extend(answers);
    messages
}
