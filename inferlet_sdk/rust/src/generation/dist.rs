//! Distributions of the next token.

use crate::base64::decode_numbers;
use crate::error::Result;
use crate::raw;

/// The most probable next tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Dist {
    /// Token ids, the most probable one first.
    pub tokens: Vec<u32>,
    /// One for each of `tokens`.
    pub probabilities: Vec<f32>,
    /// The probability of all other tokens together.
    pub rest: f32,
}

impl Dist {
    /// The most probable token.
    pub fn max_index(&self) -> u32 {
        self.tokens[0]
    }
}

/// The value of a future of one distribution.
pub fn await_dist(number: u32) -> Result<Dist> {
    raw::output_text::await_dists(number).map(dist_of)
}

/// The only distribution of what `await-dists` gives.
pub(crate) fn dist_of((tokens, probabilities, rest): (String, String, Vec<f32>)) -> Dist {
    Dist {
        tokens: decode_numbers(&tokens, u32::from_le_bytes),
        probabilities: decode_numbers(&probabilities, f32::from_le_bytes),
        rest: rest.first().copied().unwrap_or(0.0),
    }
}
