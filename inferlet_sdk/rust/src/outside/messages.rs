//! Messages: with the client or the parent, with children, over topics.

use std::ops::Deref;

use crate::error::Result;
use crate::outside::blobs::Blob;
use crate::raw;
use crate::task::HostFuture;

/// The handle that stands for the client, or the parent.
pub const CLIENT: u32 = 0;

/// A message: it is used as its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its text.
    pub text: String,
    /// Who has sent it: the id of an inferlet for one that came to a topic, "parent", or "" for a client or a child.
    pub sender: String,
    /// Blobs that came with it, with their names.
    pub blobs: Vec<(String, Blob)>,
}

impl Deref for Message {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Sends a message to the client, or a child; waits while it is read slowly.
pub(crate) async fn send(to: u32, text: &str) -> Result<()> {
    match raw::core::send(to, text)? {
        Some(number) => HostFuture::new(number, raw::core::await_number).await.map(|_| ()),
        None => Ok(()),
    }
}

/// The next message. None: the child has ended, and all its messages are taken.
pub(crate) fn receive(from: u32) -> Result<HostFuture<Option<Message>>> {
    Ok(HostFuture::new(raw::core::receive(from)?, take))
}

fn take(number: u32) -> Result<Option<Message>> {
    let found = raw::core::await_message(number)?;
    Ok(found.map(|(text, sender, blobs)| {
        let blobs = blobs.into_iter().map(|(name, handle)| (name, Blob::of(handle))).collect();
        Message { text, sender, blobs }
    }))
}
