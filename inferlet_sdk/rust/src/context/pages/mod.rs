//! The KV pages of one context, shared with the contexts that were forked from it, or with other inferlets.
//!
//! Token n is in page n / page size; where all tokens of a page were dropped there is none, but it keeps its place.
//! Nobody writes to a page with several holders: who needs room in it gets a copy.

mod dropping;
mod joining;

use std::rc::Rc;

pub(crate) use joining::Part;

use super::model::{ranges, Held, Model};
use crate::error::Result;
use crate::raw;
use crate::raw::allocate::Memory;

/// Pages allocated at once while a context grows token by token.
const AHEAD: usize = 4;
/// Tokens that the host copies or moves in one call.
const MOST_MOVED: usize = 1 << 16;

type Page = Option<Rc<Held>>;

pub(crate) struct Pages {
    model: Rc<Model>,
    pages: Vec<Page>,
    dropped: Vec<(usize, usize)>, // ranges of tokens, in order
    reserved_from: Option<usize>, // while a decode run goes on: pages that were not reserved for it
    context: Option<Vec<u32>>,    // as ranges, until pages change
}

impl Pages {
    pub fn new(model: Rc<Model>) -> Self {
        Pages { model, pages: Vec::new(), dropped: Vec::new(), reserved_from: None, context: None }
    }

    /// All pages, as ranges.
    pub fn context(&mut self) -> &[u32] {
        let pages = &self.pages;
        self.context.get_or_insert_with(|| ranges(pages.iter().flatten().map(|page| page.address)))
    }

    /// The pages for what comes behind the first `tokens` tokens, as ranges.
    pub fn output(&self, tokens: usize) -> Vec<u32> {
        ranges(self.pages[tokens / self.model.page_size..].iter().flatten().map(|page| page.address))
    }

    /// Whether a token behind the first `tokens` fits into pages that are its own, and how many there are.
    pub fn room_behind(&self, tokens: usize) -> Option<usize> {
        let page = self.pages.get(tokens / self.model.page_size)?.as_ref()?;
        page.is_writable().then(|| self.pages.len())
    }

    /// Whether tokens were dropped.
    pub fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// The range of dropped tokens in which a context of `tokens` tokens would end, if there is one.
    pub fn ends_in_dropped(&self, tokens: usize) -> Option<(usize, usize)> {
        self.dropped.iter().copied().find(|(start, stop)| *start < tokens && tokens < *stop)
    }

    /// Where the dropped tokens begin that are the last ones of a context of `tokens` tokens, if they are.
    pub fn dropped_up_to(&self, tokens: usize) -> Option<usize> {
        self.dropped.last().filter(|(_, stop)| *stop == tokens).map(|(start, _)| *start)
    }

    /// Makes room for tokens behind the first `tokens`, up to a total of `total`.
    pub fn reserve(&mut self, queue: u32, tokens: usize, total: usize) -> Result<()> {
        self.own_end(queue, tokens)?;
        let wanted = self.pages_of(total);
        if wanted > self.pages.len() {
            let missing = wanted - self.pages.len();
            let ahead = self.model.allocate(queue, Memory::Kvpage, missing.max(AHEAD)); // those ahead are not essential
            let found = match ahead {
                Err(error) if error.is_lack_of_room() && missing < AHEAD => {
                    self.model.allocate(queue, Memory::Kvpage, missing)?
                }
                other => other?,
            };
            self.extend(found);
        }
        Ok(())
    }

    /// Makes room for a decode run up to a total of `total` tokens, or fewer; for how many. `settle` ends this.
    pub fn reserve_for_run(&mut self, queue: u32, tokens: usize, total: usize) -> Result<usize> {
        self.own_end(queue, tokens)?;
        self.reserved_from = Some(self.pages.len());
        let mut missing = self.pages_of(total).saturating_sub(self.pages.len());
        while missing > 0 {
            match self.model.allocate(queue, Memory::ReservedKvpage, missing) {
                Ok(found) => {
                    self.extend(found);
                    break;
                }
                Err(error) if error.is_lack_of_room() => missing /= 2, // the run will be shorter
                Err(error) => return Err(error),
            }
        }
        Ok(self.pages.len() * self.model.page_size)
    }

    /// A run has ended: gives back the pages that were reserved for it, but those of the first `tokens` tokens.
    pub fn settle(&mut self, tokens: usize) {
        if let Some(ordinary) = self.reserved_from.take() {
            let used = ordinary.max(self.pages_of(tokens));
            if used < self.pages.len() {
                self.pages.truncate(used);
                self.context = None;
            }
        }
    }

    /// The first `tokens` tokens, which are all that have keys, for a fork.
    pub fn fork(&self, tokens: usize) -> Pages {
        let pages = self.pages[..self.pages_of(tokens)].to_vec();
        let dropped = below(&self.dropped, tokens);
        Pages { model: self.model.clone(), pages, dropped, reserved_from: None, context: None }
    }

    /// Whether the page with the last of the first `tokens` tokens is nobody else's.
    pub fn owns(&self, tokens: usize) -> bool {
        self.pages[(tokens - 1) / self.model.page_size].as_ref().map_or(false, Held::is_writable)
    }

    /// Keeps the first `tokens` tokens. Pages of its own stay for new tokens.
    pub fn cut(&mut self, queue: u32, tokens: usize) -> Result<()> {
        let size = self.model.page_size;
        let (full, rest) = (tokens / size, tokens % size);
        self.dropped = below(&self.dropped, tokens);
        let behind = self.pages.split_off(full.min(self.pages.len()));
        let mut behind = behind.into_iter().flatten();
        let mut own = Vec::new();
        let mut kept = 0;
        if rest > 0 {
            let page = behind.next().expect("it has tokens");
            if page.is_writable() {
                own.push(page);
                kept = rest;
            } else {
                self.pages.push(Some(self.copy(queue, &page, rest)?));
            }
        }
        own.extend(behind.filter(Held::is_writable));
        if !own.is_empty() {
            raw::allocate::trim_kvpage(queue, &ranges(own.iter().map(|page| page.address)), kept as u32)?;
        }
        self.extend(own);
        self.context = None;
        Ok(())
    }

    /// The pages of the first `tokens` tokens, as ranges; from now on nobody writes to them.
    pub fn seal(&self, tokens: usize) -> Vec<u32> {
        let sealed = self.pages[..self.pages_of(tokens)].iter().flatten();
        ranges(sealed.inspect(|page| page.is_sealed.set(true)).map(|page| page.address))
    }

    /// A copy of the page with the last of the first `tokens` tokens, if they do not fill it.
    pub fn copy_rest(&self, queue: u32, tokens: usize) -> Result<Option<Rc<Held>>> {
        let (full, rest) = (tokens / self.model.page_size, tokens % self.model.page_size);
        if rest == 0 {
            return Ok(None);
        }
        let last = self.pages[full].as_ref().expect("it has tokens");
        self.copy(queue, last, rest).map(Some)
    }

    /// Has pages that were imported; it is empty.
    pub fn adopt(&mut self, first: u32, count: u32) {
        let imported = (first..first + count).map(|address| self.model.hold(Memory::Kvpage, address));
        self.pages = imported.map(Some).collect();
        self.pages.iter().flatten().for_each(|page| page.is_sealed.set(true));
        self.context = None;
    }

    /// Has the page with the last of the first `tokens` tokens for itself: a copy, if others hold it.
    pub fn own_end(&mut self, queue: u32, tokens: usize) -> Result<()> {
        let place = tokens / self.model.page_size;
        self.own(queue, place..place + usize::from(tokens % self.model.page_size > 0), tokens)
    }

    /// Has the pages at these places, with some of the first `tokens` tokens, for itself: copies of those that others
    /// hold.
    fn own(&mut self, queue: u32, places: impl IntoIterator<Item = usize>, tokens: usize) -> Result<()> {
        let size = self.model.page_size;
        let is_shared = |place: &usize| self.pages[*place].as_ref().map_or(false, |page| !page.is_writable());
        let places: Vec<usize> = places.into_iter().filter(is_shared).collect();
        for some in places.chunks((MOST_MOVED / size).max(1)) {
            let copies = self.model.allocate(queue, Memory::Kvpage, some.len())?;
            let (mut shared, mut own) = (Vec::new(), Vec::new());
            for (place, copy) in some.iter().zip(&copies) {
                let page = self.pages[*place].as_ref().expect("it is shared");
                let count = size.min(tokens - place * size) as u32;
                shared.extend([page.address * size as u32, count]);
                own.extend([copy.address * size as u32, count]);
            }
            raw::allocate::copy_kvpage(queue, &shared, &own)?;
            for (place, copy) in some.iter().zip(copies) {
                self.pages[*place] = Some(copy);
            }
            self.context = None;
        }
        Ok(())
    }

    fn copy(&self, queue: u32, page: &Rc<Held>, tokens: usize) -> Result<Rc<Held>> {
        let copy = self.model.allocate(queue, Memory::Kvpage, 1)?.remove(0);
        let slots = |page: &Held| [page.address * self.model.page_size as u32, tokens as u32];
        raw::allocate::copy_kvpage(queue, &slots(page), &slots(&copy))?;
        Ok(copy)
    }

    fn slot(&self, token: usize) -> u32 {
        let size = self.model.page_size;
        let page = self.pages[token / size].as_ref().expect("it was not dropped");
        page.address * size as u32 + (token % size) as u32
    }

    fn pages_of(&self, tokens: usize) -> usize {
        (tokens + self.model.page_size - 1) / self.model.page_size
    }

    fn extend(&mut self, pages: Vec<Rc<Held>>) {
        self.pages.extend(pages.into_iter().map(Some));
        self.context = None;
    }
}

/// What of the ranges is below `end`.
fn below(ranges: &[(usize, usize)], end: usize) -> Vec<(usize, usize)> {
    ranges.iter().filter(|(start, _)| *start < end).map(|(start, stop)| (*start, (*stop).min(end))).collect()
}
