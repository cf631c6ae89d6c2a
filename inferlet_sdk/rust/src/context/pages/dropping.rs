//! Tokens that are hidden from what comes, and those that move up behind them.

use super::{Pages, MOST_MOVED};
use crate::context::model::{ranges, Held};
use crate::error::Result;
use crate::raw;

impl Pages {
    /// Hides the tokens `start` .. `stop` of the first `computed`, which have keys, from what comes, and gives back the
    /// pages that hold no others. With `close_gap` those behind move up; by how many positions they do.
    pub fn drop_tokens(
        &mut self,
        queue: u32,
        start: usize,
        stop: usize,
        computed: usize,
        close_gap: bool,
    ) -> Result<usize> {
        let size = self.model.page_size;
        let before = count(&self.dropped);
        let mut dropped = self.dropped.clone();
        dropped.push((start, stop));
        let dropped = merged(dropped);
        let gap = if close_gap { count(&dropped) - before } else { 0 };
        let behind = dropped.iter().find(|(begin, end)| *begin <= start && start < *end).map_or(stop, |(_, end)| *end);
        if gap > 0 {
            self.own(queue, behind, computed)?;
        }
        self.dropped = dropped;
        for place in start / size..=(stop - 1) / size {
            let hidden = self.hidden(place);
            let page = match self.pages[place].take() {
                Some(page) => page,
                None => continue,
            };
            if hidden == [(0, size)] {
                continue;
            }
            let page = if page.is_writable() { page } else { self.copy(queue, &page, size)? };
            hide(queue, &page, &hidden)?;
            self.pages[place] = Some(page);
        }
        self.context = None;
        if gap > 0 {
            self.shift(queue, behind, computed, -(gap as i32))?;
        }
        Ok(gap)
    }

    /// The ranges of slots in the page at a place whose tokens were dropped.
    fn hidden(&self, place: usize) -> Vec<(usize, usize)> {
        let begin = place * self.model.page_size;
        let end = begin + self.model.page_size;
        let near = self.dropped.iter().filter(|(start, stop)| *start < end && begin < *stop);
        near.map(|(start, stop)| ((*start).max(begin) - begin, (*stop).min(end) - begin)).collect()
    }

    /// Has the pages of the tokens `start` .. `stop`, the last ones with keys, for itself: copies of shared ones.
    fn own(&mut self, queue: u32, start: usize, stop: usize) -> Result<()> {
        let size = self.model.page_size;
        for place in start / size..self.pages_of(stop) {
            let page = self.pages[place].take().expect("nothing behind was dropped");
            let tokens = size.min(stop - place * size);
            let page = if page.is_writable() { page } else { self.copy(queue, &page, tokens)? };
            self.pages[place] = Some(page);
        }
        self.context = None;
        Ok(())
    }

    /// Moves the tokens `start` .. `stop`, the last ones with keys, whose pages are its own, to other positions.
    pub(super) fn shift(&mut self, queue: u32, start: usize, stop: usize, by: i32) -> Result<()> {
        if start >= stop {
            return Ok(());
        }
        let size = self.model.page_size;
        let (place, stay) = (start / size, start % size);
        let head = self.pages[place].clone().filter(|_| stay > 0);
        if let Some(head) = &head {
            hide(queue, head, &merged([&[(0, stay)], &self.hidden(place)[..]].concat()))?;
            // those that stay
        }
        let pages: Vec<u32> =
            self.pages[place..self.pages_of(stop)].iter().flatten().map(|page| page.address).collect();
        for some in pages.chunks((MOST_MOVED / size).max(1)) {
            raw::forward::shift_kvpage(queue, &ranges(some.iter().copied()), by)?;
        }
        head.map_or(Ok(()), |head| hide(queue, &head, &self.hidden(place)))
    }
}

/// Hides the tokens in these ranges of slots, and shows all others of the page.
fn hide(queue: u32, page: &Held, hidden: &[(usize, usize)]) -> Result<()> {
    let slots: Vec<u32> = hidden.iter().flat_map(|(start, stop)| [*start as u32, (stop - start) as u32]).collect();
    raw::forward::mask_kvpage(queue, &[page.address, 1], &slots)
}

fn count(ranges: &[(usize, usize)]) -> usize {
    ranges.iter().map(|(start, stop)| stop - start).sum()
}

/// The ranges in order, those that touch in one.
fn merged(mut ranges: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    ranges.sort_unstable();
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (start, stop) in ranges {
        match found.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(stop),
            _ => found.push((start, stop)),
        }
    }
    found
}
