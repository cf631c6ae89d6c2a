//! Clocks, random numbers and spans. The target has none: they are those of WASI.

use std::future::Future;
use std::time::Duration;

use crate::abi::call;
use crate::error::{Code, Error, Result};
use crate::raw;

/// Characters of the name of a span that are told.
const LONGEST_NAME: usize = 256;

/// How long it is since some moment: the difference between two of these is how long something took.
pub fn monotonic() -> Duration {
    #[link(wasm_import_module = "wasi:clocks/monotonic-clock@0.2.0")]
    extern "C" {
        #[link_name = "now"]
        fn import() -> u64;
    }
    Duration::from_nanos(unsafe { import() })
}

/// How long it is since the beginning of 1970 (UTC), by the clock of the server.
pub fn unix_time() -> Duration {
    #[link(wasm_import_module = "wasi:clocks/wall-clock@0.2.0")]
    extern "C" {
        #[link_name = "now"]
        fn import(_: *mut u8);
    }
    let (seconds, nanoseconds): (u64, u32) = unsafe { call(|result| import(result)) };
    Duration::new(seconds, nanoseconds)
}

/// A random number that nobody can foresee.
pub fn random() -> u64 {
    #[link(wasm_import_module = "wasi:random/random@0.2.0")]
    extern "C" {
        #[link_name = "get-random-u64"]
        fn import() -> u64;
    }
    unsafe { import() }
}

/// What a future gives. In the traces of the server, if it has any, it is a span of this inferlet.
pub async fn span<T>(name: &str, future: impl Future<Output = Result<T>>) -> Result<T> {
    spanned("", name, future).await
}

/// As `span`, of an operation that the contract names.
pub(crate) async fn spanned<T>(operation: &str, name: &str, future: impl Future<Output = Result<T>>) -> Result<T> {
    let began = monotonic();
    let given = future.await;
    let error = match &given {
        Err(Error { code: Code::Other, .. }) => "error",
        Err(error) => error.code.name(),
        Ok(_) => "",
    };
    let name: String = name.chars().take(LONGEST_NAME).collect();
    raw::core::span(operation, &name, (monotonic() - began).as_micros() as u64, error);
    given
}
