//! Beyond the model: messages and their blobs, children, topics, servers outside, clocks.

pub mod blobs;
pub mod children;
pub mod clock;
pub mod http;
pub mod messages;
pub mod topics;
