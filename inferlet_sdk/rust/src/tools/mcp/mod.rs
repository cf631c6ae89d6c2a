//! Tools of a server that speaks the Model Context Protocol over HTTP (MCP, revision 2025-06-18, "Streamable HTTP").
//!
//! Each message is a POST of its own; the answer is one JSON object, or a stream of events that holds it. The server is
//! a stranger: what it answers is bounded and checked, and whatever is wrong is an error that says what to do.

mod body;
mod events;
mod texts;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::schema::{check, shown};
use super::tool::{name_of, Tool};
use crate::error::{Code, Error, Result};
use crate::json::Json;
use crate::outside::http::{http_post, Response};
use crate::task::Semaphore;
use body::{Body, WRONG_PATH};
use texts::{error_text, said, shortened, text_of};

/// Revisions that are understood, the latest first.
const VERSIONS: [&str; 2] = ["2025-06-18", "2025-03-26"];
const MOST_TOOLS: usize = 512;
/// Requests of a server before it answers one of ours; each costs a request to answer.
const MOST_ASKED: usize = 64;
/// Requests to a server; others wait, for an inferlet has a bound on them.
const MOST_AT_ONCE: usize = 8;
const LONGEST_SESSION: usize = 1024;
const NO_METHOD: i32 = -32601;

/// A server, as one client sees it.
pub(crate) struct McpServer {
    url: String,
    headers: Vec<(String, String)>,
    seconds: f64,
    state: RefCell<State>,
    turns: Semaphore,
    starting: Semaphore,
}

#[derive(Default)]
struct State {
    count: u32,
    version: String,
    session: String,
}

impl McpServer {
    /// Begins a session with the server that takes messages at this address. These headers go with each request, which
    /// may take so many seconds.
    pub async fn start(url: &str, headers: &[(&str, &str)], seconds: f64) -> Result<McpServer> {
        let server = McpServer {
            url: url.to_string(),
            headers: headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            seconds,
            state: RefCell::default(),
            turns: Semaphore::new(MOST_AT_ONCE),
            starting: Semaphore::new(1),
        };
        server.begin().await?;
        Ok(server)
    }

    /// Begins a session: client and server agree on a revision of the protocol.
    async fn begin(&self) -> Result<()> {
        let client = Json::object([("name", Json::from("pie")), ("version", Json::from("1"))]);
        let about = Json::object([
            ("protocolVersion", Json::from(VERSIONS[0])),
            ("capabilities", Json::Object(Vec::new())),
            ("clientInfo", client),
        ]);
        let told = self.ask("initialize", &about).await?.ok_or_else(|| self.session_is_gone())?;
        let version = told.get("protocolVersion").unwrap_or(&Json::Null);
        let known = VERSIONS.iter().find(|known| version.as_str() == Some(known)).ok_or_else(|| {
            let wanted = VERSIONS.join(" or ");
            self.wrong(&format!("speaks revision {} of MCP: one that speaks {} will do", shown(version), wanted))
        })?;
        if told.get("capabilities").and_then(|all| all.get("tools")).is_none() {
            return Err(self.wrong("has no tools: take the address of one that has"));
        }
        self.state.borrow_mut().version = known.to_string();
        let message = [("method", Json::from("notifications/initialized"))];
        self.post(message, "notifications/initialized").await?.ok_or_else(|| self.session_is_gone())?;
        Ok(())
    }

    /// Its tools, or those of these names.
    pub async fn tools(self: Rc<Self>, only: Option<&[&str]>) -> Result<Vec<Tool>> {
        let (mut found, mut names, mut cursors) = (Vec::new(), BTreeSet::new(), Vec::<String>::new());
        loop {
            let cursor = cursors.last().map(|cursor| ("cursor", Json::from(cursor.as_str())));
            let told = self.request("tools/list", Json::object(cursor)).await?;
            let listed = told.get("tools").unwrap_or(&Json::Null);
            if !matches!(listed, Json::List(_)) {
                let what = format!("lists its tools as {}, which is no list: tell who runs it", shown(listed));
                return Err(self.wrong(&what));
            }
            for one in listed.items() {
                let name = one.get("name").and_then(Json::as_str).ok_or_else(|| {
                    self.wrong(&format!("lists a tool without a name, {}: tell who runs it", shown(one)))
                })?;
                if only.map_or(false, |only| !only.contains(&name)) {
                    continue;
                }
                if !names.insert(name.to_string()) {
                    return Err(self.wrong(&format!("lists the tool {:?} twice: tell who runs it", name)));
                }
                let tool = self.clone().tool(name, one, &found)?;
                found.push(tool);
            }
            match told.get("nextCursor") {
                None => break,
                Some(Json::Text(cursor))
                    if !cursors.contains(cursor) && found.len().max(cursors.len()) < MOST_TOOLS =>
                {
                    cursors.push(cursor.clone());
                }
                Some(_) => {
                    let what = format!("lists tools without an end (more than {}, or again)", MOST_TOOLS);
                    return Err(self.wrong(&(what + ": tell who runs it")));
                }
            }
        }
        match only.unwrap_or(&[]).iter().find(|name| !names.contains(**name)) {
            Some(name) => Err(Error::invalid(format!(
                "{} has no tool {:?}; look at what it lists without `only`",
                self.url, name
            ))),
            None => Ok(found),
        }
    }

    // ---- one tool ----

    fn tool(self: Rc<Self>, name: &str, told: &Json, others: &[Tool]) -> Result<Tool> {
        let shown_name = shown(&Json::from(name));
        let given = told.get("description").or_else(|| told.get("title")).cloned().unwrap_or_else(|| Json::from(""));
        let description = given.as_str().ok_or_else(|| {
            self.wrong(&format!("describes the tool {} as {}: tell who runs it", shown_name, shown(&given)))
        })?;
        let schema = told.get("inputSchema").unwrap_or(&Json::Null).clone();
        let is_object = schema.get("type").and_then(Json::as_str) == Some("object");
        if !is_object || !matches!(schema.get("properties"), None | Some(Json::Object(_))) {
            return Err(self.wrong(&format!(
                "gives the tool {} an inputSchema that cannot be used: {} is none of an object. Tell who runs it, or \
                 name the tools that you need: `only`",
                shown_name,
                shown(&schema)
            )));
        }
        let (server, name, output) = (self, name.to_string(), Rc::new(told.get("outputSchema").cloned()));
        Ok(Tool::new(&name_of(&name, others), description, schema, move |arguments| {
            let (server, name, output) = (server.clone(), name.clone(), output.clone());
            async move { server.call(&name, arguments, output.as_ref().as_ref()).await }
        }))
    }

    /// What a tool gives: its text, or, where it says none, its structured content.
    async fn call(&self, name: &str, arguments: Json, output: Option<&Json>) -> Result<String> {
        let params = Json::object([("name", Json::from(name)), ("arguments", arguments)]);
        let result = self.request("tools/call", params).await?;
        let (none, structured) = (Json::List(Vec::new()), result.get("structuredContent"));
        let content = result.get("content").unwrap_or(&none);
        if !matches!(content, Json::List(parts) if parts.iter().all(|part| matches!(part, Json::Object(_)))) {
            let what = format!("answers the tool {} with the content {}: tell who runs it", name, shown(content));
            return Err(self.wrong(&what));
        }
        let text = content.items().iter().map(text_of).collect::<Vec<String>>().join("\n");
        if !matches!(result.get("isError"), None | Some(Json::Bool(false))) {
            let why = if text.is_empty() { "it does not say why".to_string() } else { shortened(&text) };
            return Err(Error::with(Code::RequestFailed, format!("{} failed: {}", name, why)));
        }
        if let Some(schema) = output {
            let value = structured.ok_or_else(|| {
                let what = format!("promises structured content of the tool {}, and gives none", name);
                self.wrong(&(what + ": tell who runs it"))
            })?;
            check(schema, value, "$").map_err(|why| {
                let what = format!("gives for the tool {} what its own outputSchema excludes: {}", name, why);
                self.wrong(&(what + ". Tell who runs it"))
            })?;
        }
        match structured {
            Some(structured) if text.is_empty() => Ok(structured.to_string()),
            _ => Ok(text),
        }
    }

    // ---- messages ----

    /// The result of a request; in a new session, if the server has forgotten this one.
    async fn request(&self, method: &str, params: Json) -> Result<Json> {
        let _turn = self.turns.acquire().await;
        let session = self.session();
        if let Some(result) = self.ask(method, &params).await? {
            return Ok(result);
        }
        {
            let _alone = self.starting.acquire().await; // several calls hear of it, one begins anew
            if self.session() == session {
                self.begin().await?;
            }
        }
        self.ask(method, &params).await?.ok_or_else(|| self.session_is_gone())
    }

    /// The result of a request; None: the server has ended the session.
    async fn ask(&self, method: &str, params: &Json) -> Result<Option<Json>> {
        let number = {
            let mut state = self.state.borrow_mut();
            state.count += 1;
            state.count
        };
        let what = match params.get("name").and_then(Json::as_str) {
            Some(name) if method == "tools/call" => format!("the tool {}", name),
            _ => method.to_string(),
        };
        let message = [("id", Json::from(number)), ("method", Json::from(method)), ("params", params.clone())];
        let response = match self.post(message, &what).await? {
            Some(response) => response,
            None => return Ok(None),
        };
        if method == "initialize" {
            self.state.borrow_mut().session = self.checked_session(response.header("mcp-session-id"))?;
        }
        let (mut body, mut asked) = (Body::new(response, &self.url, &what), 0);
        body.expect_messages()?;
        while let Some(message) = body.message().await? {
            if message.get("method").is_some() {
                asked += usize::from(message.get("id").is_some());
                if asked > MOST_ASKED {
                    let told = format!("asks more than {} things before it answers {}", MOST_ASKED, what);
                    return Err(self.wrong(&(told + ": tell who runs it")));
                }
                if !self.reply(&message).await? {
                    return Ok(None);
                }
            } else if message.get("id").and_then(Json::as_i64) == Some(i64::from(number)) {
                return self.result(&message, &what).map(Some);
            } else {
                let told = shown(&message);
                return Err(self.wrong(&format!("answers {} with {}, which is no answer to it", what, told)));
            }
        }
        Err(self.wrong(&format!("ends its answer to {} before there is one: try again", what)))
    }

    /// Answers what the server asks meanwhile: it may see whether the client is there. Notifications need none. False:
    /// it has ended the session.
    async fn reply(&self, message: &Json) -> Result<bool> {
        let (id, is_ping) = (message.get("id"), message.get("method").and_then(Json::as_str) == Some("ping"));
        let text = Json::from("this client offers nothing but ping");
        let answer = match is_ping {
            true => ("result", Json::Object(Vec::new())),
            false => ("error", Json::object([("code", Json::from(NO_METHOD)), ("message", text)])),
        };
        match id {
            Some(id) => Ok(self.post([("id", id.clone()), answer], "a message").await?.is_some()),
            None => Ok(true),
        }
    }

    fn result(&self, message: &Json, what: &str) -> Result<Json> {
        if let Some(error) = message.get("error") {
            let message = format!("{} refuses {}: {}", self.url, what, error_text(error));
            return Err(Error::with(Code::RequestFailed, message));
        }
        match message.get("result") {
            Some(result @ Json::Object(_)) => Ok(result.clone()),
            _ => Err(self.wrong(&format!("answers {} with {}, which has no result", what, shown(message)))),
        }
    }

    /// The response to a message, whose status is one of success; None: the server has ended the session.
    async fn post<const N: usize>(&self, message: [(&str, Json); N], what: &str) -> Result<Option<Response>> {
        let message = Json::object([("jsonrpc", Json::from("2.0"))].into_iter().chain(message));
        let mut request = http_post(&self.url).json(&message).timeout(self.seconds);
        request = request.header("Accept", "application/json, text/event-stream");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let session = if what == "initialize" { String::new() } else { self.session() };
        if !session.is_empty() {
            request = request.header("Mcp-Session-Id", &session);
        }
        let version = self.state.borrow().version.clone();
        if !version.is_empty() {
            request = request.header("MCP-Protocol-Version", &version);
        }
        let response = request.send().await.map_err(|error| match error.code {
            Code::RequestFailed => {
                let why = format!("no MCP server can be reached at {}: {}", self.url, error.message);
                Error::with(Code::RequestFailed, why + ". Start it, or mend the address")
            }
            Code::TimedOut => {
                Error::with(Code::TimedOut, format!("the MCP server {} does not answer: {}", self.url, error.message))
            }
            _ => error,
        })?;
        if response.is_ok() {
            return Ok(Some(response));
        }
        let status = response.status;
        if status == 404 && !session.is_empty() {
            return Ok(None);
        }
        if matches!(status, 404 | 405) {
            return Err(self.wrong(&format!("answers with status {}: {}", status, WRONG_PATH)));
        }
        let body = Body::new(response, &self.url, what).rest().await?;
        let said = said(&String::from_utf8_lossy(&body));
        Err(Error::with(Code::RequestFailed, format!("{} answers with status {}: {}", self.url, status, said)))
    }

    fn session(&self) -> String {
        self.state.borrow().session.clone()
    }

    fn session_is_gone(&self) -> Error {
        Error::with(Code::RequestFailed, format!("{} has ended the session: begin anew", self.url))
    }

    fn checked_session(&self, session: Option<&str>) -> Result<String> {
        let session = session.unwrap_or("");
        if session.len() > LONGEST_SESSION || !session.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = format!("names its session {}, which no header can hold", shown(&Json::from(session)));
            return Err(self.wrong(&(what + ": tell who runs it")));
        }
        Ok(session.to_string())
    }

    fn wrong(&self, what: &str) -> Error {
        texts::wrong(&self.url, what)
    }
}
