//! How the next token is chosen.

use super::dist::Dist;
use crate::error::Result;
use crate::json::{finite, Json, ToJson};
use crate::raw;

/// Samples from the model's distribution on the worker, cut and reshaped. The defaults do not change it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    /// 0 is greedy.
    pub temperature: f64,
    /// Only the `top_k` most probable tokens; 0: all.
    pub top_k: u32,
    /// Only the most probable tokens that together reach this mass; 1: all.
    pub top_p: f64,
    /// Only tokens at least this fraction as probable as the most probable; 0: all.
    pub min_p: f64,
    /// Only the tokens whose surprise is closest to the entropy, as many as reach this mass; 1: all.
    pub typical_p: f64,
    /// Divides positive logits of recent tokens, multiplies negative ones; 1: none.
    pub repetition_penalty: f64,
    /// Subtracted from the logit of a recent token for each occurrence; 0: none.
    pub frequency_penalty: f64,
    /// Subtracted once from the logit of a recent token; 0: none.
    pub presence_penalty: f64,
    /// Added to the logits of tokens, -1000 to 1000 each, for at most 512 tokens.
    pub logit_bias: Vec<(u32, f64)>,
    /// Equal seeds give equal tokens, at any load of the server; None: a random seed.
    pub seed: Option<u64>,
    /// Number of last tokens of the context, prompt included, that the penalties treat as recent; 0: all.
    pub window: usize,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            window: 64,
        }
    }
}

impl Sampler {
    /// Always the most probable token.
    pub fn greedy() -> Self {
        Sampler { temperature: 0.0, ..Sampler::default() }
    }

    /// Whether a penalty is set, so that recent tokens matter.
    pub fn looks_back(&self) -> bool {
        (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)
    }

    /// What of these tokens penalties count.
    pub(crate) fn recent<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let window = if self.window == 0 { tokens.len() } else { self.window.min(tokens.len()) };
        &tokens[tokens.len() - if self.looks_back() { window } else { 0 }..]
    }

    pub(crate) fn create(&self) -> Result<Handle> {
        let mut config = vec![("top_k", Json::from(self.top_k)), ("seed", self.seed.to_json())];
        for (name, number) in [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("repetition_penalty", self.repetition_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ] {
            config.push((name, finite(name, number)?));
        }
        let bias = |(token, bias): &(u32, f64)| Ok((token.to_string(), finite("logit_bias", *bias)?));
        config.push(("logit_bias", Json::object(self.logit_bias.iter().map(bias).collect::<Result<Vec<_>>>()?)));
        raw::fused::create_sampler(&Json::object(config).to_string()).map(Handle)
    }
}

/// A handle of the host, dropped with this.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub u32);

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = raw::core::drop(self.0);
    }
}

/// A function of the program that chooses the next token of the `k` most probable ones.
pub struct Choose {
    pub(crate) choose: Box<dyn FnMut(&Dist) -> u32>,
    pub(crate) k: usize,
    pub(crate) temperature: f32,
}

/// Keeps the surprise of the text near a target, in bits a token: Mirostat 2.0 (Basu et al. 2021). `rate`: how much of
/// an error the bound follows. It has a state: make one for each text.
pub fn mirostat(target: f64, rate: f64, seed: u64) -> impl FnMut(&Dist) -> u32 {
    let mut bound = 2.0 * target;
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    move |dist| {
        let surprise = |place: usize| -f64::from(dist.probabilities[place]).log2();
        let kept = (0..dist.tokens.len()).take_while(|place| surprise(*place) <= bound).count().max(1);
        let mass: f64 = dist.probabilities[..kept].iter().map(|one| f64::from(*one)).sum();
        let mut left = uniform(&mut state) * mass;
        let mut place = 0;
        while place + 1 < kept && left >= f64::from(dist.probabilities[place]) {
            left -= f64::from(dist.probabilities[place]);
            place += 1;
        }
        bound -= rate * (surprise(place) - target);
        dist.tokens[place]
    }
}

/// A number in [0, 1), by SplitMix64.
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
