//! Requests to servers outside, of those that the operator allows.

use std::future::Future;

use crate::base64::{decode, encode};
use crate::error::{Code, Error, Result};
use crate::generation::sampler::Handle;
use crate::json::{finite, Json};
use crate::raw;
use crate::task::HostFuture;

/// Bytes of a body that are read at a time.
const PIECE_BYTES: u32 = 1 << 16;
/// What means something in a URL, beside letters and digits.
const KEPT: &[u8] = b"%/:?#[]@!$&'()*+,;=~_.-";

/// A request: set what goes with it, then `send` it.
#[must_use = "a request is not sent before `send`"]
pub struct Request {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    timeout: Option<f64>,
    redirects: Option<u32>,
}

/// Asks a server for something.
pub fn http_get(url: impl Into<String>) -> Request {
    Request::new("GET", url)
}

/// Sends something to a server.
pub fn http_post(url: impl Into<String>) -> Request {
    Request::new("POST", url)
}

impl Request {
    /// A request with any method.
    pub fn new(method: &str, url: impl Into<String>) -> Self {
        let (method, url) = (method.to_uppercase(), url.into());
        Request { method, url, headers: Vec::new(), body: Vec::new(), timeout: None, redirects: None }
    }

    /// A header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }

    /// A value as the body.
    pub fn json(self, value: &Json) -> Self {
        let is_named = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let request = if is_named { self } else { self.header("Content-Type", "application/json") };
        request.body(value.to_string())
    }

    /// The body as it is.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Seconds for all of it, the body of the response included.
    pub fn timeout(mut self, seconds: f64) -> Self {
        self.timeout = Some(seconds);
        self
    }

    /// How many redirects to follow; 5 by default.
    pub fn redirects(mut self, most: u32) -> Self {
        self.redirects = Some(most);
        self
    }

    /// Sends it at once; what it gives is the response, once its headers are there, and dropped before, it is cancelled.
    /// A status such as 404 is a response, too.
    pub fn send(self) -> impl Future<Output = Result<Response>> {
        let sent = self.sent();
        async move {
            let (body, about) = sent?.await?;
            Response::new(body, &about)
        }
    }

    fn sent(self) -> Result<HostFuture<(u32, String)>> {
        let mut options = Vec::new();
        if let Some(seconds) = self.timeout {
            options.push(("timeout", finite("timeout", seconds)?));
        }
        if let Some(most) = self.redirects {
            options.push(("redirects", Json::from(most)));
        }
        let pair = |(name, value): (String, String)| Json::List(vec![name.into(), value.into()]);
        let headers = Json::List(self.headers.into_iter().map(pair).collect()).to_string();
        let (url, options) = (quoted(&self.url), Json::object(options).to_string());
        let number = raw::http::http_request(&self.method, &url, &headers, &encode(&self.body), &options)?;
        Ok(HostFuture::new(number, raw::http::await_response))
    }
}

/// A URL in which spaces and characters beyond ASCII are written as %XX.
fn quoted(url: &str) -> String {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || KEPT.contains(&byte);
    let written = |byte| if is_kept(byte) { char::from(byte).to_string() } else { format!("%{:02X}", byte) };
    url.bytes().map(written).collect()
}

/// A response; dropped, its connection is closed.
pub struct Response {
    /// Its status.
    pub status: u32,
    /// Where it came from, after redirects.
    pub url: String,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    body: Handle,
}

impl Response {
    fn new(body: u32, about: &str) -> Result<Self> {
        let body = Handle(body);
        let about = Json::parse(about)?;
        let text = |value: &Json| value.as_str().unwrap_or("").to_string();
        let headers = about.get("headers").map_or(&[][..], Json::items).iter().map(Json::items);
        let pair = |pair: &[Json]| Some((text(pair.first()?), text(pair.get(1)?)));
        Ok(Response {
            status: about.get("status").and_then(Json::as_i64).unwrap_or(0) as u32,
            url: about.get("url").map(text).unwrap_or_default(),
            headers: headers.filter_map(pair).collect(),
            body,
        })
    }

    /// Whether the status says so: 200 to 299.
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of a name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// An error unless the status is 200 to 299.
    pub fn check(self) -> Result<Self> {
        if self.is_ok() {
            return Ok(self);
        }
        Err(Error::with(Code::RequestFailed, format!("{} answered with status {}", self.url, self.status)))
    }

    /// The next bytes of the body; none at its end.
    pub async fn piece(&mut self) -> Result<Vec<u8>> {
        let number = raw::http::read_body(self.body.0, PIECE_BYTES)?;
        Ok(decode(&HostFuture::new(number, raw::core::await_text).await?))
    }

    /// All of the body that was not read.
    pub async fn bytes(mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let piece = self.piece().await?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.extend(piece);
        }
    }

    /// The body as text in UTF-8.
    pub async fn text(self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes().await?).into_owned())
    }

    /// The value of a body that is JSON.
    pub async fn json(self) -> Result<Json> {
        let (url, status) = (self.url.clone(), self.status);
        let text = String::from_utf8(self.bytes().await?).map_err(|_| Error::invalid("not in UTF-8"));
        text.and_then(|text| Json::parse(text.trim_start_matches('\u{feff}'))).map_err(|error| {
            let message = format!("{} answered with status {}, and its body is {}", url, status, error.message);
            Error::with(Code::RequestFailed, message)
        })
    }
}
