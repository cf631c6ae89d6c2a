//! Trying again what fails now and then.

use std::future::Future;
use std::time::Duration;

use super::sleep;
use crate::error::{Code, Error, Result};

const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What a function gives, at the first of at most `times` calls that does not fail because of a server outside or of a
/// worker: `RequestFailed`, `TimedOut`, `WorkerFailed`, `Busy`. Other errors are given at once. Between two calls there is
/// `pause`, then twice as much, and so on, at most a minute. The last error says how often it was tried.
pub async fn retry<T, F: Future<Output = Result<T>>>(
    times: usize,
    mut pause: Duration,
    mut call: impl FnMut() -> F,
) -> Result<T> {
    if times == 0 {
        return Err(Error::invalid("times: nothing can be tried 0 times: give 1 or more"));
    }
    for _ in 1..times {
        match call().await {
            Err(error) if is_passing(error.code) => {}
            given => return given,
        }
        pause = pause.min(LONGEST_PAUSE);
        sleep(pause).await?;
        pause *= 2;
    }
    call().await.map_err(|error| match error.code {
        code if is_passing(code) => Error::with(code, format!("{} (tried {} times)", error.message, times)),
        _ => error,
    })
}

fn is_passing(code: Code) -> bool {
    matches!(code, Code::RequestFailed | Code::TimedOut | Code::WorkerFailed | Code::Busy)
}
