//! Tools of a server that speaks the Model Context Protocol over HTTP (MCP, revision 2025-06-18, "Streamable HTTP").
//!
//! Each message is a POST of its own; the answer is one JSON object, or a stream of events that holds it.

use std::cell::RefCell;

use crate::error::{Code, Error, Result};
use crate::json::Json;
use crate::outside::http::{http_post, Response};

/// Revisions that are understood, the latest first.
const VERSIONS: [&str; 2] = ["2025-06-18", "2025-03-26"];
/// Bytes of one answer.
const LARGEST_ANSWER: usize = 1 << 20;
const MOST_TOOLS: usize = 512;

/// A server, as one client sees it.
pub(crate) struct McpServer {
    url: String,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    count: u32,
    version: String,
    session: Option<String>,
}

impl McpServer {
    /// Begins a session with the server that takes messages at this address.
    pub async fn start(url: &str) -> Result<McpServer> {
        let server = McpServer { url: url.to_string(), state: RefCell::default() };
        let client = Json::object([("name", Json::from("pie")), ("version", Json::from("1"))]);
        let about = Json::object([
            ("protocolVersion", Json::from(VERSIONS[0])),
            ("capabilities", Json::Object(Vec::new())),
            ("clientInfo", client),
        ]);
        let told = server.request("initialize", about).await?;
        let version = told.get("protocolVersion").and_then(Json::as_str).unwrap_or("");
        if !VERSIONS.contains(&version) {
            let wanted = VERSIONS.join(" or ");
            return Err(
                server.wrong(&format!("speaks revision {:?} of MCP: one that speaks {} will do", version, wanted))
            );
        }
        if told.get("capabilities").and_then(|all| all.get("tools")).is_none() {
            return Err(server.wrong("has no tools: take the address of one that has"));
        }
        server.state.borrow_mut().version = version.to_string();
        let message = [("jsonrpc", Json::from("2.0")), ("method", Json::from("notifications/initialized"))];
        server.post(Json::object(message)).await?;
        Ok(server)
    }

    /// Its tools, as it lists them.
    pub async fn tools(&self) -> Result<Vec<Json>> {
        let mut found = Vec::new();
        let mut cursor: Option<Json> = None;
        loop {
            let told = self.request("tools/list", Json::object(cursor.map(|cursor| ("cursor", cursor)))).await?;
            match told.get("tools") {
                Some(Json::List(listed)) => found.extend_from_slice(listed),
                _ => return Err(self.wrong("lists its tools as what is no list: tell who runs it")),
            }
            cursor = told.get("nextCursor").cloned();
            if cursor.is_none() {
                return Ok(found);
            }
            if found.len() >= MOST_TOOLS {
                return Err(self.wrong(&format!("lists more than {} tools: tell who runs it", MOST_TOOLS)));
            }
        }
    }

    /// What a tool gives: its text, or, where it says none, its structured content.
    pub async fn call(&self, name: &str, arguments: Json) -> Result<String> {
        let params = Json::object([("name", Json::from(name)), ("arguments", arguments)]);
        let result = self.request("tools/call", params).await?;
        let content = result.get("content").map_or(&[][..], Json::items);
        let texts: Vec<&str> = content.iter().filter_map(|part| part.get("text").and_then(Json::as_str)).collect();
        let text = texts.join("\n");
        if result.get("isError").and_then(Json::as_bool) == Some(true) {
            let why = if text.is_empty() { "it does not say why" } else { &text };
            return Err(Error::with(Code::RequestFailed, format!("{} failed: {}", name, why)));
        }
        match result.get("structuredContent") {
            Some(structured) if text.is_empty() => Ok(structured.to_string()),
            _ => Ok(text),
        }
    }

    async fn request(&self, method: &str, params: Json) -> Result<Json> {
        let number = {
            let mut state = self.state.borrow_mut();
            state.count += 1;
            state.count
        };
        let message = Json::object([
            ("jsonrpc", Json::from("2.0")),
            ("id", Json::from(number)),
            ("method", Json::from(method)),
            ("params", params),
        ]);
        let response = self.post(message).await?;
        if method == "initialize" {
            self.state.borrow_mut().session = response.header("mcp-session-id").map(str::to_string);
        }
        let is_stream = response.header("content-type").map_or(false, |kind| kind.starts_with("text/event-stream"));
        let body = self.body(response, method).await?;
        let parts = if is_stream { events(&body) } else { vec![body] };
        for part in parts {
            let answer = Json::parse(&part)
                .map_err(|error| self.wrong(&format!("answers {} with what is {}", method, error.message)))?;
            if answer.get("id").and_then(Json::as_i64) != Some(i64::from(number)) || answer.get("method").is_some() {
                continue;
            }
            if let Some(error) = answer.get("error") {
                let why = error.get("message").and_then(Json::as_str).unwrap_or("it does not say why");
                return Err(Error::with(Code::RequestFailed, format!("{} refuses {}: {}", self.url, method, why)));
            }
            return answer
                .get("result")
                .cloned()
                .ok_or_else(|| self.wrong(&format!("answers {} without a result", method)));
        }
        Err(self.wrong(&format!("ends its answer to {} before there is one: try again", method)))
    }

    /// The response to a message, whose status is one of success.
    async fn post(&self, message: Json) -> Result<Response> {
        let mut request = http_post(&self.url).json(&message).timeout(60.0);
        request = request.header("Accept", "application/json, text/event-stream");
        {
            let state = self.state.borrow();
            if let Some(session) = &state.session {
                request = request.header("Mcp-Session-Id", session);
            }
            if !state.version.is_empty() {
                request = request.header("MCP-Protocol-Version", &state.version);
            }
        }
        let response = request.send().await.map_err(|error| match error.code {
            Code::RequestFailed => {
                let why = format!("no MCP server can be reached at {}: {}", self.url, error.message);
                Error::with(Code::RequestFailed, why + ". Start it, or mend the address")
            }
            _ => error,
        })?;
        if !response.is_ok() {
            let status = response.status;
            return Err(
                self.wrong(&format!("answers with status {}: is it the right path? It often ends in /mcp", status))
            );
        }
        Ok(response)
    }

    async fn body(&self, mut response: Response, method: &str) -> Result<String> {
        let mut all = Vec::new();
        loop {
            let piece = response.piece().await?;
            if piece.is_empty() {
                return Ok(String::from_utf8_lossy(&all).into_owned());
            }
            all.extend(piece);
            if all.len() > LARGEST_ANSWER {
                let most = LARGEST_ANSWER >> 20;
                return Err(self.wrong(&format!("answers {} with more than {} MiB: ask it for less", method, most)));
            }
        }
    }

    fn wrong(&self, what: &str) -> Error {
        Error::with(Code::RequestFailed, format!("the MCP server {} {}", self.url, what))
    }
}

/// The data of each event of a stream.
fn events(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut data: Vec<&str> = Vec::new();
    for line in body.lines().chain([""]) {
        if let Some(value) = line.strip_prefix("data:") {
            data.push(value.strip_prefix(' ').unwrap_or(value));
        } else if line.is_empty() && !data.is_empty() {
            found.push(data.join("\n"));
            data.clear();
        }
    }
    found
}
