//! What keeps a generation to a grammar: the matcher, and the tokens that it has to accept before it is used.

use super::run::Pieces;
use super::sampler::Handle;
use crate::error::Result;
use crate::raw;
use crate::task::HostFuture;

/// Which forced tokens are run together: as many as usually pay, as the host says.
pub(crate) const WHERE_IT_PAYS: u32 = 1;

/// Follows the tokens of one generation.
pub(crate) struct Guide {
    matcher: Handle,
    accepted: usize,
    /// Whether there is something to do before the first token.
    advances: bool,
}

impl Guide {
    /// At the beginning of a grammar of this kind.
    pub async fn open(queue: u32, kind: &str, text: &str) -> Result<Self> {
        let opened = raw::grammar::open_matcher(queue, kind, text, "")?;
        let (number, advances) = HostFuture::new(opened, raw::grammar::await_matcher).await?;
        Ok(Guide { matcher: Handle(number), accepted: 0, advances })
    }

    /// The number of the matcher, behind these tokens, which are all of the generation so far.
    pub fn at(&mut self, tokens: &[u32]) -> Result<u32> {
        self.accepted += raw::grammar::advance_matcher(self.matcher.0, 0, &tokens[self.accepted..], 0, 0)?.0 as usize;
        Ok(self.matcher.0)
    }

    /// The part of a draft that may come behind these tokens, which are all of the generation so far, up to a place
    /// where tokens are forced that are run together; and what may come at each of its outputs.
    pub fn allowed(&mut self, tokens: &[u32], draft: &[u32]) -> Result<(usize, Vec<String>)> {
        let branch = Handle(raw::grammar::fork_matcher(self.at(tokens)?)?);
        let mut masks = vec![raw::grammar::grammar_mask(branch.0)?];
        for (place, token) in draft.iter().enumerate() {
            let (accepted, forced, _, is_over) =
                raw::grammar::advance_matcher(branch.0, 0, &[*token], WHERE_IT_PAYS, u32::MAX)?;
            if accepted == 0 || !forced.is_empty() || is_over {
                return Ok((place, masks));
            }
            masks.push(raw::grammar::grammar_mask(branch.0)?);
        }
        Ok((draft.len(), masks))
    }

    /// What is forced before all tokens, if it is enough to be run together, and at most `left` tokens.
    pub fn forced_first(&mut self, left: usize, detokenizer: u32) -> Result<Option<Pieces>> {
        if !std::mem::take(&mut self.advances) {
            return Ok(None);
        }
        let mut pieces = Pieces::default();
        self.go_on(&[], &mut pieces, left, detokenizer)?;
        Ok(Some(pieces).filter(|found| found.complete || !found.tokens.is_empty()))
    }

    /// Behind new pieces, of which `left` tokens are wanted, come those that are forced there, if they are enough to be
    /// run together. `before`: all tokens of the generation so far.
    pub fn go_on(&mut self, before: &[u32], pieces: &mut Pieces, left: usize, detokenizer: u32) -> Result<()> {
        let tokens = [before, &pieces.tokens].concat();
        let most = (left - pieces.tokens.len()) as u32;
        let lacking = &tokens[self.accepted..];
        let (accepted, forced, texts, is_over) =
            raw::grammar::advance_matcher(self.matcher.0, detokenizer, lacking, WHERE_IT_PAYS, most)?;
        self.accepted += accepted as usize + forced.len();
        pieces.tokens.extend(forced);
        pieces.texts.extend(texts);
        pieces.complete = is_over;
        Ok(())
    }
}
