//! Messages to all inferlets of the tenant that want them.

use crate::error::{Error, Result};
use crate::generation::sampler::Handle;
use crate::outside::messages::{self, Message};
use crate::raw;
use crate::task::HostFuture;

/// Sends a message to all that have subscribed to a topic, this one included; how many they are. Waits while one of
/// them has a full queue.
pub async fn broadcast(topic: &str, message: &str) -> Result<u32> {
    HostFuture::new(raw::topics::broadcast(topic, message)?, raw::core::await_number).await
}

/// From now on, messages to the topic are kept for this inferlet.
pub fn subscribe(topic: &str) -> Result<Subscription> {
    raw::topics::subscribe(topic).map(|number| Subscription(Handle(number)))
}

/// A queue of what comes to a topic. Publishers wait while too much waits in it: drop it when you take no more.
pub struct Subscription(Handle);

impl Subscription {
    /// The next message; `sender` is the id of the inferlet that has sent it.
    pub async fn next(&self) -> Result<Message> {
        let message = messages::receive(self.0 .0)?.await?;
        message.ok_or_else(|| Error::new("the subscription has ended"))
    }
}
