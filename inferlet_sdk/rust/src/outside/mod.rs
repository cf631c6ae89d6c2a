//! Beyond the model: messages.

pub mod messages;
