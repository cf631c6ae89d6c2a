//! Beyond the model: messages, children, topics, servers outside.

pub mod children;
pub mod http;
pub mod messages;
pub mod topics;
