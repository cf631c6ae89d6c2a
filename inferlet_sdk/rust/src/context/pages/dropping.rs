//! Tokens that are hidden from what comes, and those that move up behind them.

use std::collections::BTreeSet;

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
        self.own_end(queue, computed)?;
        let whole = [(0, size)];
        let edges = [start / size, (stop - 1) / size].into_iter().filter(|place| self.within(&dropped, *place) != whole);
        let moved = if gap > 0 { behind / size..self.pages_of(computed) } else { 0..0 };
        let places: BTreeSet<usize> = edges.chain(moved).collect();
        self.own(queue, places, computed)?;
        self.dropped = dropped; // there is room for all that it takes
        for place in start / size..=(stop - 1) / size {
            if let Some(page) = &self.pages[place] {
                match self.hidden(place) {
                    hidden if hidden == whole => self.pages[place] = None,
                    hidden => hide(queue, page, &hidden)?,
                }
            }
        }
        self.context = None;
        if gap > 0 {
            self.shift(queue, behind, computed, -(gap as i32), computed)?;
        }
        Ok(gap)
    }

    /// The ranges of slots in the page at a place whose tokens were dropped.
    fn hidden(&self, place: usize) -> Vec<(usize, usize)> {
        self.within(&self.dropped, place)
    }

    /// What of ranges of tokens is in the page at a place, as slots.
    fn within(&self, tokens: &[(usize, usize)], place: usize) -> Vec<(usize, usize)> {
        let begin = place * self.model.page_size;
        let end = begin + self.model.page_size;
        let near = tokens.iter().filter(|(start, stop)| *start < end && begin < *stop);
        near.map(|(start, stop)| ((*start).max(begin) - begin, (*stop).min(end) - begin)).collect()
    }

    /// Moves the tokens `start` .. `stop` of the first `end`, which have keys, to other positions. Their pages must be
    /// its own.
    pub(super) fn shift(&mut self, queue: u32, start: usize, stop: usize, by: i32, end: usize) -> Result<()> {
        if start >= stop {
            return Ok(());
        }
        let (first, behind) = (start / self.model.page_size, self.pages_of(stop));
        let mut stay = Vec::new(); // pages with others, which are hidden meanwhile
        for place in if behind - first > 1 { vec![first, behind - 1] } else { vec![first] } {
            let others = self.others(place, start, stop, end);
            if let (false, Some(page)) = (others.is_empty(), &self.pages[place]) {
                hide(queue, page, &merged([others, self.hidden(place)].concat()))?;
                stay.push((page.clone(), place));
            }
        }
        let pages: Vec<u32> = self.pages[first..behind].iter().flatten().map(|page| page.address).collect();
        for some in pages.chunks((MOST_MOVED / self.model.page_size).max(1)) {
            raw::forward::shift_kvpage(queue, &ranges(some.iter().copied()), by)?;
        }
        stay.iter().try_for_each(|(page, place)| hide(queue, page, &self.hidden(*place)))
    }

    /// The ranges of slots in the page at a place that hold tokens up to `end`, but for `start` .. `stop`.
    fn others(&self, place: usize, start: usize, stop: usize, end: usize) -> Vec<(usize, usize)> {
        let begin = place * self.model.page_size;
        let filled = self.model.page_size.min(end - begin);
        let around = [(0, start.saturating_sub(begin)), (stop - begin, filled)];
        around.iter().copied().filter(|(from, to)| from < to).collect()
    }
}

/// Hides the tokens in these ranges of slots, and shows all others of the page.
fn hide(queue: u32, page: &Held, hidden: &[(usize, usize)]) -> Result<()> {
    let slots: Vec<u32> = hidden.iter().flat_map(|(start, stop)| [*start as u32, (stop - start) as u32]).collect();
    raw::forward::mask_kvpage(queue, &[page.address, 1], &slots)
}

pub(super) fn count(ranges: &[(usize, usize)]) -> usize {
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
