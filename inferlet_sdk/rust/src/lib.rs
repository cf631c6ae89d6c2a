//! The SDK of Pie in Rust: programs that run beside a language model.
//!
//! ```ignore
//! use inferlet::{Args, Context, Result};
//!
//! inferlet::main!(main);
//!
//! async fn main(args: Args) -> Result<()> {
//!     let mut ctx = Context::new(args.model())?;
//!     ctx.fill("Hello, ");
//!     let mut generation = ctx.generate(10);
//!     while let Some(piece) = generation.next().await? {
//!         args.send(piece).await?;
//!     }
//!     Ok(())
//! }
//! ```

#![warn(missing_docs)]

mod abi;
mod args;
mod base64;
mod context;
#[doc(hidden)]
pub mod entry;
mod error;
mod generation;
mod json;
mod outside;
#[allow(missing_docs)]
#[rustfmt::skip]
pub mod raw;
mod task;
mod tools;

pub use args::{Args, Argument};
pub use context::model::{ranges, Model};
pub use context::search::Hypothesis;
pub use context::Context;
pub use error::{Code, Error, Result};
pub use generation::dist::Dist;
pub use generation::draft::{prompt_lookup, Draft, Guess};
pub use generation::sampler::{mirostat, Sampler};
pub use generation::stop::StopReason;
pub use generation::Generation;
pub use json::{Json, ToJson};
pub use outside::blobs::Blob;
pub use outside::children::{Child, ChildEnd, Launch};
pub use outside::clock::{monotonic, random, span, unix_time};
pub use outside::http::{http_get, http_post, Request, Response};
pub use outside::messages::Message;
pub use outside::topics::{broadcast, subscribe, Subscription};
pub use task::{first, join_all, retry, sleep, timeout, try_join_all, First, HostFuture, Tasks};
pub use tools::{CallResult, Tool, Tools, Turn};
