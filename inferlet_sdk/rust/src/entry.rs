//! How a program begins and ends.

use std::fmt::Display;
use std::future::Future;

use crate::abi::passed;
use crate::args::Args;
use crate::json::{Json, ToJson};
use crate::{raw, task};

/// Names the entry: `inferlet::main!(main);` for `async fn main(args: Args) -> Result<T>`. What it returns is the
/// result for the client, unless it is `()`.
#[macro_export]
macro_rules! main {
    ($entry:path) => {
        #[doc(hidden)]
        #[export_name = "run"]
        pub extern "C" fn inferlet_run() -> *const u8 {
            $crate::entry::run($entry)
        }
    };
}

const LACKS: &str =
    ": the standard library has no clock, threads or environment here; there are `inferlet::monotonic`, \
                     `unix_time`, `sleep`, `join_all` and `Args::environment`";

/// `result<_, string>` as the canonical ABI stores it.
#[repr(C)]
struct Outcome {
    is_error: u8,
    text: *const u8,
    length: usize,
}

/// Runs a program to its end; where its outcome stands.
pub fn run<T: ToJson, E: Display, F: Future<Output = Result<T, E>>>(entry: impl FnOnce(Args) -> F) -> *const u8 {
    std::panic::set_hook(Box::new(|panic| {
        let lacks = panic.location().map_or(false, |place| place.file().contains("library/std/src/"));
        let message = format!("{}{}", panic, if lacks { LACKS } else { "" });
        let _ = raw::core::log(raw::core::LogLevel::Error, passed(&message)); // the host tells it beside the trap
    }));
    let ended = task::block_on(entry(Args::new())).map_err(|error| format!("{:#}", error)); // with causes, if it tells them
    let ended = ended.and_then(|value| set_result(&value.to_json()));
    let is_error = u8::from(ended.is_err());
    let error: &'static str = passed(Box::leak(ended.err().unwrap_or_default().into_boxed_str()));
    let outcome = Outcome { is_error, text: error.as_ptr(), length: error.len() };
    let place: &'static Outcome = Box::leak(Box::new(outcome));
    (place as *const Outcome).cast()
}

fn set_result(value: &Json) -> Result<(), String> {
    match value {
        Json::Null => Ok(()), // a result that the program has set stays
        value => raw::core::set_result(&value.to_string()).map_err(|error| error.to_string()),
    }
}
