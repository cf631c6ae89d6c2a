//! A model as the contexts of a program share it: what it is, its queues, and what waits to be given back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::{Code, Error, Result};
use crate::generation::sampler::Handle;
use crate::json::Json;
use crate::raw;
use crate::raw::allocate::Memory;
use crate::task::Semaphore;

/// Tokens of a forward whose inputs a queue keeps for the next one.
pub(crate) const KEPT_INPUTS: usize = 16;
/// Queues for which nobody asks what the limit is.
const FEW: usize = 8;
/// Tokens that one call takes.
const MOST_LISTED: usize = 1 << 17;

thread_local! {
    static KNOWN: RefCell<Vec<Rc<Model>>> = RefCell::new(Vec::new());
}

/// A model: its sizes and limits.
pub struct Model {
    /// Its name.
    pub name: String,
    /// Tokens in a page.
    pub page_size: usize,
    /// Most tokens that a context may hold.
    pub max_context: usize,
    /// Largest `k` of a distribution.
    pub max_dist: usize,
    /// Whether tokens can be moved to other positions.
    pub moves_tokens: bool,
    /// Whether it keeps a state of each text.
    pub has_states: bool,
    /// Tokens after which generation ends.
    pub stop_tokens: Vec<u32>,
    /// All that the host says about it.
    pub info: Json,
    pub(crate) imports: Semaphore, // of exports that are being opened
    queues: RefCell<Vec<Rc<Queue>>>,
    most_queues: Cell<usize>,
    freed: RefCell<[Vec<u32>; 2]>, // pages, embeds
}

/// A command queue, and the embeds for the inputs of short forwards, which its users fill in turn.
pub(crate) struct Queue {
    pub number: u32,
    pub last_step: Cell<u32>, // the output embed of the last forward, if that gave a distribution
    pub is_open: Cell<bool>,  // the program may use it, too
    inputs: RefCell<Vec<u32>>,
}

impl Queue {
    fn new(model: &str) -> Result<Self> {
        let number = raw::core::create_queue(model)?;
        Ok(Queue { number, last_step: Cell::new(u32::MAX), is_open: Cell::default(), inputs: RefCell::default() })
    }

    /// Embeds for `count` tokens, at most `KEPT_INPUTS`, as ranges.
    pub fn inputs(&self, model: &Model, count: usize) -> Result<Vec<u32>> {
        let missing = count.saturating_sub(self.inputs.borrow().len());
        if missing > 0 {
            let (first, _) = model.allocate_embeds(self.number, missing, missing)?;
            self.inputs.borrow_mut().extend(first..first + missing as u32);
        }
        Ok(ranges(self.inputs.borrow()[..count].iter().copied()))
    }

    /// Keeps that of single tokens alone: a run may be reading it.
    fn give_inputs_back(&self) -> Result<()> {
        let mut inputs = self.inputs.borrow_mut();
        if inputs.len() > 1 {
            raw::allocate::dealloc(self.number, Memory::Emb, &ranges(inputs.drain(1..)))?;
        }
        Ok(())
    }
}

impl Model {
    /// A model by name; an error if there is none.
    pub fn named(name: &str) -> Result<Rc<Model>> {
        if let Some(model) = KNOWN.with(|all| all.borrow().iter().find(|one| one.name == name).cloned()) {
            return Ok(model);
        }
        let info = Json::parse(&raw::core::get_model_info(name)?)?;
        let number = |key: &str| info.get(key).and_then(Json::as_i64).unwrap_or(0) as usize;
        let stops = info.get("stop_tokens").map_or(&[][..], Json::items);
        let model = Rc::new(Model {
            name: name.to_string(),
            page_size: number("page_size").max(1),
            max_context: number("max_context"),
            max_dist: number("max_dist"),
            has_states: number("state_pages") > 0,
            moves_tokens: info.get("moves_tokens").and_then(Json::as_bool).unwrap_or(false),
            stop_tokens: stops.iter().filter_map(Json::as_i64).map(|token| token as u32).collect(),
            info,
            imports: Semaphore::new(usize::MAX),
            queues: RefCell::default(),
            most_queues: Cell::new(0),
            freed: RefCell::default(),
        });
        KNOWN.with(|all| all.borrow_mut().push(model.clone()));
        Ok(model)
    }

    /// An error if it keeps a state of each text.
    pub(crate) fn check_states(&self, operation: &str) -> Result<()> {
        if !self.has_states {
            return Ok(());
        }
        let message = format!(
            "{}: {} keeps a state of each text, from which no token can be taken out, and which no other tokens can be \
             put before: fill a new context with the tokens that shall stay",
            operation, self.name
        );
        Err(Error::with(Code::Unsupported, message))
    }

    /// A queue to work with: one that no other context has, if there may be one more, else the one with the fewest
    /// users.
    pub(crate) fn queue(&self) -> Result<Rc<Queue>> {
        let mut queues = self.queues.borrow_mut();
        if let Some(idle) = queues.iter().find(|queue| Rc::strong_count(queue) == 1) {
            return Ok(idle.clone());
        }
        if queues.len() < FEW || queues.len() < self.most_queues() {
            match Queue::new(&self.name) {
                Ok(queue) => {
                    let queue = Rc::new(queue);
                    queues.push(queue.clone());
                    return Ok(queue);
                }
                Err(error) if error.is_lack_of_room() && !queues.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(queues.iter().min_by_key(|queue| Rc::strong_count(queue)).expect("there are some").clone())
    }

    /// Three quarters of those that the inferlet may have: the program may want some for itself.
    fn most_queues(&self) -> usize {
        if self.most_queues.get() == 0 {
            self.most_queues.set((usage("max_queues") * 3 / 4).max(1));
        }
        self.most_queues.get()
    }

    /// The number of any queue, for what has no order: to give back, to tokenize.
    pub(crate) fn some_queue(&self) -> Result<u32> {
        if let Some(queue) = self.queues.borrow().first() {
            return Ok(queue.number);
        }
        self.queue().map(|queue| queue.number)
    }

    /// Tokens of a text. `special_tokens`: those that are written in it are recognized.
    pub fn tokenize(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>> {
        raw::tokenize::tokenize(self.some_queue()?, text, special_tokens)
    }

    /// Text of tokens, without special tokens.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        let queue = self.some_queue()?;
        if tokens.len() <= MOST_LISTED {
            return raw::tokenize::detokenize(queue, tokens);
        }
        let detokenizer = Handle(raw::tokenize::create_detokenizer(queue)?);
        tokens.chunks(MOST_LISTED).map(|some| raw::tokenize::push_tokens(detokenizer.0, some)).collect()
    }

    /// A page, or an embed, that nobody holds any more: it goes back at the next `give_back`.
    fn free(&self, kind: Memory, address: u32) {
        self.freed.borrow_mut()[usize::from(kind == Memory::Emb)].push(address);
    }

    /// Gives back what nobody holds any more.
    pub(crate) fn give_back(&self) {
        for (place, kind) in [Memory::Kvpage, Memory::Emb].into_iter().enumerate() {
            let addresses = std::mem::take(&mut self.freed.borrow_mut()[place]);
            if let (false, Ok(queue)) = (addresses.is_empty(), self.some_queue()) {
                let _ = raw::allocate::dealloc(queue, kind, &ranges(addresses.into_iter()));
            }
        }
    }

    /// `count` embeds, or fewer, but no fewer than `least`: the first, and how many. Those that were given back count
    /// until what was issued before has run: so where there are too few, waits for what the queue has. In the end each
    /// of the others gives back what it keeps, and is waited for.
    pub(crate) fn allocate_embeds(&self, queue: u32, mut count: usize, least: usize) -> Result<(u32, usize)> {
        self.give_back();
        let find = |place: usize| self.queues.borrow().get(place).cloned();
        let (mut waited, mut others) = (false, (0..).map_while(find).filter(|one| one.number != queue));
        loop {
            let lack = match raw::allocate::alloc(queue, Memory::Emb, count as u32) {
                Ok(first) => return Ok((first, count)),
                Err(error) if error.is_lack_of_room() => error,
                Err(error) => return Err(error),
            };
            if !std::mem::replace(&mut waited, true) {
                synchronize(queue)?;
            } else if count > least {
                count = (count / 2).max(least);
            } else {
                let other = others.next().ok_or(lack)?;
                other.give_inputs_back()?;
                synchronize(other.number)?;
            }
        }
    }

    /// Allocates pages or embeds, behind what waits to be given back.
    pub(crate) fn allocate(self: &Rc<Self>, queue: u32, kind: Memory, count: usize) -> Result<Vec<Rc<Held>>> {
        let first = if kind == Memory::Emb {
            self.allocate_embeds(queue, count, count)?.0
        } else {
            self.give_back();
            raw::allocate::alloc(queue, kind, count as u32)?
        };
        Ok((first..first + count as u32).map(|address| self.hold(kind, address)).collect())
    }

    pub(crate) fn hold(self: &Rc<Self>, kind: Memory, address: u32) -> Rc<Held> {
        let kind = if kind == Memory::Emb { kind } else { Memory::Kvpage };
        Rc::new(Held { model: self.clone(), kind, address, is_sealed: Cell::new(false) })
    }
}

/// Gives back what nobody holds any more, of all models: before the program waits, maybe for long.
pub(crate) fn give_all_back() {
    KNOWN.with(|all| all.borrow().iter().for_each(|model| model.give_back()));
}

/// Waits until all that was issued in a queue has run.
fn synchronize(queue: u32) -> Result<()> {
    raw::core::await_number(raw::core::synchronize(queue)?).map(|_| ())
}

/// What the inferlet holds, or may hold, by the name that the host has for it.
pub(crate) fn usage(name: &str) -> usize {
    let usage = Json::parse(&raw::core::usage()).unwrap_or(Json::Null);
    usage.get(name).and_then(Json::as_i64).unwrap_or(0) as usize
}

/// A page or an embed, which may have several holders. With the last of them it goes back.
pub(crate) struct Held {
    pub address: u32,
    pub is_sealed: Cell<bool>, // exported or imported: nobody writes to it
    model: Rc<Model>,
    kind: Memory,
}

impl Held {
    /// Whether the only holder may write to it.
    pub fn is_writable(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1 && !self.is_sealed.get()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.model.free(self.kind, self.address);
    }
}

/// Addresses as ranges: first, length, first, length, ...
pub fn ranges(addresses: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for address in addresses {
        let count = found.len();
        if count > 0 && found[count - 2] + found[count - 1] == address {
            found[count - 1] += 1;
        } else {
            found.extend([address, 1]);
        }
    }
    found
}
