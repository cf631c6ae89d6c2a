//! When generation ends: text that may be the beginning of a stop string is held back until it is certain that it is
//! not.

use crate::error::Result;

/// Why a generation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A stop token, a stop string or a condition, or the grammar is complete.
    Stop,
    /// The most tokens, or the model's context is full.
    Length,
    /// The program has dropped it before.
    Ended,
}

impl StopReason {
    /// As the Python SDK names it.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Stop => "stop",
            StopReason::Length => "length",
            StopReason::Ended => "ended",
        }
    }
}

/// Holds generated text back until no stop string can cut it any more.
pub(crate) struct TextFilter {
    strings: Vec<String>,
    include_stop: bool,
    text: String,
    released: usize,
    /// Where the text ends; None until a stop string is found.
    pub cut: Option<usize>,
    ends: Vec<usize>, // length of the text after each token
}

impl TextFilter {
    pub fn new(strings: Vec<String>, include_stop: bool) -> Self {
        TextFilter { strings, include_stop, text: String::new(), released: 0, cut: None, ends: Vec::new() }
    }

    /// Text that may be the beginning of a stop string.
    pub fn held(&self) -> &str {
        &self.text[self.released..]
    }

    /// Adds the text of one token; gives the text to emit now.
    pub fn push(&mut self, piece: &str) -> String {
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let mut begin = self.text.len().saturating_sub(longest.saturating_sub(1));
        while !self.text.is_char_boundary(begin) {
            begin -= 1;
        }
        self.text.push_str(piece);
        self.ends.push(self.text.len());
        if piece.is_empty() {
            return String::new();
        }
        let text = &self.text;
        let places = self.strings.iter().filter_map(|one| text[begin..].find(one).map(|at| (begin + at, one.len())));
        if let Some((at, length)) = places.min() {
            let cut = if self.include_stop { at + length } else { at };
            self.cut = Some(cut.max(self.released));
            return self.rest();
        }
        let held = (1..longest.min(text.len() + 1)).rev().find(|held| {
            let at = text.len() - held;
            text.is_char_boundary(at) && self.strings.iter().any(|one| one.starts_with(&text[at..]))
        });
        self.release(self.text.len() - held.unwrap_or(0))
    }

    /// The text still held back, for a generation that has ended.
    pub fn rest(&mut self) -> String {
        self.release(self.cut.unwrap_or(self.text.len()))
    }

    fn release(&mut self, end: usize) -> String {
        let begin = self.released.min(end);
        self.released = self.released.max(end);
        self.text[begin..end].to_string()
    }

    /// How many tokens make up the text before the cut, and the part of the next token's text before it. `is_whole`:
    /// whether so many first tokens end where a character does; else the next one completes it, so the last of them is
    /// not kept.
    pub fn kept(&self, is_whole: impl Fn(usize) -> Result<bool>) -> Result<(usize, &str)> {
        let cut = self.cut.unwrap_or(self.text.len());
        let mut count = self.ends.iter().take_while(|end| **end < cut).count();
        count = if cut == 0 { 0 } else { count + usize::from(self.ends[count] == cut) };
        let end_of = |count: usize| if count > 0 { self.ends[count - 1] } else { 0 };
        while count > 0 && !self.text[end_of(count)..].chars().next().map_or(true, |one| one.is_ascii()) {
            if is_whole(count)? {
                break;
            }
            count -= 1;
        }
        Ok((count, &self.text[end_of(count)..cut]))
    }
}
