//! Blobs: bytes that stay outside of the program until it reads them.

use std::rc::Rc;

use crate::base64::decode;
use crate::error::Result;
use crate::generation::sampler::Handle;
use crate::raw::blobs;

/// Bytes that one call of the host reads.
const MOST_READ: usize = 256 << 10;

/// Bytes outside of the program. What an inferlet holds of blobs is bounded: they are given back when the last clone is
/// dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob(Rc<Handle>);

impl Blob {
    /// One that came with the launch (`pie run --blob NAME=FILE`); an error names those that there are.
    pub fn open(name: &str) -> Result<Self> {
        blobs::open_blob(name).map(Self::of)
    }

    /// A handle, which belongs to this blob from now on.
    pub(crate) fn of(handle: u32) -> Self {
        Blob(Rc::new(Handle(handle)))
    }

    /// Its handle, for raw calls.
    pub fn handle(&self) -> u32 {
        self.0 .0
    }

    /// Its size in bytes.
    pub fn size(&self) -> Result<usize> {
        blobs::read_blob(self.handle(), 0, 0).map(|(_, size)| size as usize)
    }

    /// Bytes from `start` on: `length` of them, or fewer at its end.
    pub fn read(&self, start: usize, length: usize) -> Result<Vec<u8>> {
        let mut found = Vec::new();
        while found.len() < length {
            let (place, wanted) = (start + found.len(), MOST_READ.min(length - found.len()));
            let piece = decode(&blobs::read_blob(self.handle(), place as u32, wanted as u32)?.0);
            found.extend_from_slice(&piece);
            if piece.len() < wanted {
                break;
            }
        }
        Ok(found)
    }

    /// All of it.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        self.read(0, usize::MAX)
    }
}
