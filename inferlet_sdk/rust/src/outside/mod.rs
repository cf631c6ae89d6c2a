//! Beyond the model: messages and their blobs, children, topics, servers outside.

pub mod blobs;
pub mod children;
pub mod http;
pub mod messages;
pub mod topics;
