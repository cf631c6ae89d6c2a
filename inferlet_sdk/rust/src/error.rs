//! Errors of calls and of programs.

use std::fmt;

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// An argument is malformed or out of range.
    InvalidArgument,
    /// A text has more tokens than the model takes, or one call.
    TooLong,
    /// A handle or name does not exist, or another inferlet owns it.
    NotFound,
    /// No free slot, an embed that was never filled, or a similar wrong state.
    InvalidState,
    /// A limit of this inferlet is reached.
    QuotaExceeded,
    /// The whole pool is too small.
    Exhausted,
    /// The model does not implement the trait, or the server does not offer the function.
    Unsupported,
    /// The operator of the server does not allow it.
    NotAllowed,
    /// A server outside could not be reached, or answered what cannot be read.
    RequestFailed,
    /// A server outside took longer than it may.
    TimedOut,
    /// The operation was cancelled.
    Cancelled,
    /// The inference worker failed; the command had no effect.
    WorkerFailed,
    /// Nothing is wrong: issue it again in a moment.
    Busy,
    /// An error of the program itself, or a code of a later version.
    Other,
}

const CODES: [(&str, Code); 13] = [
    ("invalid-argument", Code::InvalidArgument),
    ("too-long", Code::TooLong),
    ("not-found", Code::NotFound),
    ("invalid-state", Code::InvalidState),
    ("quota-exceeded", Code::QuotaExceeded),
    ("exhausted", Code::Exhausted),
    ("unsupported", Code::Unsupported),
    ("not-allowed", Code::NotAllowed),
    ("request-failed", Code::RequestFailed),
    ("timed-out", Code::TimedOut),
    ("cancelled", Code::Cancelled),
    ("worker-failed", Code::WorkerFailed),
    ("busy", Code::Busy),
];

impl Code {
    /// As the contract names it; "" of an error of the program itself.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(_, code)| *code == self).map_or("", |(name, _)| name)
    }
}

/// An error: why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Why.
    pub code: Code,
    /// What is wrong, and what to do; for people.
    pub message: String,
}

/// What calls and programs return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of the program itself.
    pub fn new(message: impl Into<String>) -> Self {
        Self::with(Code::Other, message)
    }

    /// An error with a code.
    pub fn with(code: Code, message: impl Into<String>) -> Self {
        Error { code, message: message.into() }
    }

    /// An argument that cannot be.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::with(Code::InvalidArgument, message)
    }

    pub(crate) fn from_host(code: &str, message: String) -> Self {
        let known = CODES.iter().find(|(name, _)| *name == code);
        Error { code: known.map_or(Code::Other, |(_, code)| *code), message }
    }

    /// Whether there is no room, now or for this inferlet.
    pub fn is_lack_of_room(&self) -> bool {
        matches!(self.code, Code::QuotaExceeded | Code::Exhausted)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code.name() {
            "" => to.write_str(&self.message),
            name => write!(to, "{}: {}", name, self.message),
        }
    }
}

impl std::error::Error for Error {}

impl From<&str> for Error {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

macro_rules! from_errors {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Error {
            fn from(error: $kind) -> Self {
                Self::new(error.to_string())
            }
        }
    )*};
}

from_errors!(
    std::num::ParseIntError,
    std::num::ParseFloatError,
    std::num::TryFromIntError,
    std::str::ParseBoolError,
    std::str::Utf8Error,
    std::string::FromUtf8Error,
    std::fmt::Error
);
