//! Streams of events (HTML, section 9.2.6), piece by piece.

/// What has come of a stream, up to its last whole event.
#[derive(Default)]
pub(crate) struct Events {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    is_after_cr: bool,
}

impl Events {
    /// The data of each event that ends in these bytes. Lines end with LF, CR or both.
    pub fn feed(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for byte in piece {
            let is_after_cr = std::mem::replace(&mut self.is_after_cr, *byte == b'\r');
            match byte {
                b'\n' if is_after_cr => {} // its CR has ended the line
                b'\n' | b'\r' => found.extend(self.end_line()),
                other => self.line.push(*other),
            }
        }
        found
    }

    /// The data of the event that this line ends.
    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.data.take();
        }
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
        if name == b"data" {
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                Some(data) => data.extend([b"\n", value].concat()),
                None => self.data = Some(value.to_vec()),
            }
        }
        None
    }
}
