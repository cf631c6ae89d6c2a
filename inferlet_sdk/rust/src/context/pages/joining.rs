//! Texts behind each other, each as it was computed alone.

use std::collections::HashSet;

use super::dropping::count;
use super::{below, Pages, MOST_MOVED};
use crate::context::model::ranges;
use crate::error::Result;
use crate::raw;

/// Tokens of a table that are joined with others: in these ranges, moved by so many positions.
pub(crate) struct Part<'a> {
    pub pages: &'a Pages,
    pub kept: Vec<(usize, usize)>,
    pub by: usize,
}

impl Pages {
    /// The ranges of the first `tokens` tokens that were not dropped.
    pub fn kept(&self, tokens: usize) -> Vec<(usize, usize)> {
        let dropped = below(&self.dropped, tokens);
        let starts = std::iter::once(0).chain(dropped.iter().map(|(_, stop)| *stop));
        let stops = dropped.iter().map(|(start, _)| *start).chain(std::iter::once(tokens));
        starts.zip(stops).filter(|(start, stop)| start < stop).collect()
    }

    /// Has the tokens of other tables behind each other; it is empty. Full pages are shared if a page begins there, and
    /// nothing is left out, moved or there before; the others are copied, at once unless they share pages, as a slot
    /// stands in a copy once: so this takes few waves.
    pub fn join(&mut self, queue: u32, parts: &[Part<'_>]) -> Result<()> {
        let (size, mut tokens) = (self.model.page_size, 0);
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        let mut copied = HashSet::new();
        for part in parts {
            let more = count(&part.kept);
            let own: HashSet<u32> = part.pages.pages.iter().flatten().map(|page| page.address).collect();
            let is_here = self.pages.iter().flatten().any(|page| own.contains(&page.address));
            let as_it_is = tokens % size == 0 && part.by == 0 && !part.pages.has_dropped() && !is_here;
            let shared = if as_it_is { more / size } else { 0 };
            let place = tokens / size;
            self.pages.splice(place..place, part.pages.pages[..shared].iter().cloned()); // spare ones stay behind them
            self.context = None;
            if shared * size < more {
                self.reserve(queue, tokens + shared * size, tokens + more)?;
                if own.iter().any(|page| copied.contains(page)) {
                    copy(queue, &sources, &targets)?;
                    sources.clear();
                    targets.clear();
                    copied.clear();
                }
                copied.extend(own);
                let kept = part.kept.iter().flat_map(|(start, stop)| *start..*stop).skip(shared * size);
                sources.extend(kept.map(|token| part.pages.slot(token)));
                targets.extend((tokens + shared * size..tokens + more).map(|token| self.slot(token)));
            }
            tokens += more;
        }
        copy(queue, &sources, &targets)?;
        let mut begin = 0;
        for part in parts {
            let stop = begin + count(&part.kept);
            if part.by > 0 {
                self.shift(queue, begin, stop, part.by as i32, tokens)?;
            }
            begin = stop;
        }
        Ok(())
    }
}

fn copy(queue: u32, sources: &[u32], targets: &[u32]) -> Result<()> {
    for (some, others) in sources.chunks(MOST_MOVED).zip(targets.chunks(MOST_MOVED)) {
        raw::allocate::copy_kvpage(queue, &ranges(some.iter().copied()), &ranges(others.iter().copied()))?;
    }
    Ok(())
}
