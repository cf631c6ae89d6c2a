//! Tasks: an executor for one program, and futures of the host.
//!
//! The guest is suspended as a whole, in one of two ways: if the program waits for one future, the call that takes its
//! value suspends it; if it waits for several, `wait` does, until one of them is done.

mod retry;
mod semaphore;
mod several;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::context::model::give_all_back;
use crate::error::Result;
use crate::raw;
pub use retry::retry;
pub(crate) use semaphore::Semaphore;
pub(crate) use several::is_alone;
pub use several::{first, join_all, timeout, try_join_all, First, Tasks};

/// The host gets a turn after so many polls in which a task has been woken: tasks that only wake each other must not keep
/// results from arriving.
const POLLS_BEFORE_YIELD: u32 = 32;

thread_local! {
    static WAITING: RefCell<Waiting> = RefCell::new(Waiting::default());
}

/// What tasks wait for.
#[derive(Default)]
struct Waiting {
    futures: Vec<(u32, Waker)>,
    done: Vec<u32>,
}

impl Waiting {
    fn register(&mut self, number: u32, waker: &Waker) {
        match self.futures.iter_mut().find(|(one, _)| *one == number) {
            Some((_, known)) if known.will_wake(waker) => {}
            Some((_, known)) => *known = waker.clone(),
            None => self.futures.push((number, waker.clone())),
        }
    }

    fn forget(&mut self, number: u32) {
        self.futures.retain(|(one, _)| *one != number);
        self.done.retain(|one| *one != number);
    }

    /// Whether it is done; then nobody waits for it any more.
    fn take(&mut self, number: u32) -> bool {
        let place = self.done.iter().position(|one| *one == number);
        place.map(|place| self.done.swap_remove(place)).is_some()
    }

    fn set_done(&mut self, numbers: &[u32]) -> Vec<Waker> {
        self.done.extend_from_slice(numbers);
        let (done, rest) = std::mem::take(&mut self.futures).into_iter().partition(|(one, _)| numbers.contains(one));
        self.futures = rest;
        let done: Vec<(u32, Waker)> = done;
        done.into_iter().map(|(_, waker)| waker).collect()
    }
}

/// Whether somebody has woken a task.
struct Flag {
    is_woken: AtomicBool,
    parent: Option<Waker>,
}

impl Flag {
    fn new(parent: Option<Waker>) -> Arc<Self> {
        Arc::new(Flag { is_woken: AtomicBool::new(true), parent })
    }

    fn take(&self) -> bool {
        self.is_woken.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.wake_by_ref();
        }
    }
}

/// Runs a future to its end.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    let flag = Flag::new(None);
    let waker = Waker::from(flag.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        let mut polls = 0;
        while flag.take() {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            polls += 1;
            if polls % POLLS_BEFORE_YIELD == 0 {
                yield_to_host(&mut context);
            }
        }
        suspend();
    }
}

/// Lets the host go on, and hears what is done, although a task may be ready.
fn yield_to_host(context: &mut Context<'_>) {
    match raw::core::sleep(0) {
        Ok(number) => {
            let mut soon = HostFuture::new(number, raw::core::await_number);
            if Pin::new(&mut soon).poll(context).is_pending() {
                suspend();
                let _ = Pin::new(&mut soon).poll(context);
            }
        }
        Err(_) if WAITING.with(|all| all.borrow().futures.is_empty()) => {}
        Err(_) => suspend(), // it has as many futures as it may: those that are ready wait for one of them
    }
}

/// Suspends the guest until something is done for which a task waits.
fn suspend() {
    give_all_back();
    let waiting: Vec<u32> = WAITING.with(|all| all.borrow().futures.iter().map(|(number, _)| *number).collect());
    assert!(!waiting.is_empty(), "all tasks wait for each other: nothing can wake the program");
    let done = if waiting.len() == 1 { waiting } else { wait(&waiting) };
    for waker in WAITING.with(|all| all.borrow_mut().set_done(&done)) {
        waker.wake();
    }
}

fn wait(waiting: &[u32]) -> Vec<u32> {
    loop {
        let done = raw::core::wait(waiting);
        if !done.is_empty() {
            return done;
        }
        let message = format!("waits for one of {} futures of the host", waiting.len());
        let _ = raw::core::log(raw::core::LogLevel::Info, &message);
    }
}

/// A value that the host will have: `.await` it. Dropped before, it is cancelled.
#[must_use = "futures do nothing unless they are awaited"]
pub struct HostFuture<T> {
    number: u32,
    take: fn(u32) -> Result<T>,
    is_taken: bool,
}

impl<T> HostFuture<T> {
    /// The future of this number, whose value this call takes.
    pub fn new(number: u32, take: fn(u32) -> Result<T>) -> Self {
        HostFuture { number, take, is_taken: false }
    }
}

impl<T> Future for HostFuture<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !is_done(self.number, context) {
            return Poll::Pending;
        }
        self.is_taken = true;
        Poll::Ready((self.take)(self.number))
    }
}

impl<T> Drop for HostFuture<T> {
    fn drop(&mut self) {
        if !self.is_taken {
            WAITING.with(|all| all.borrow_mut().forget(self.number));
            let _ = raw::core::cancel(self.number);
        }
    }
}

fn is_done(number: u32, context: &mut Context<'_>) -> bool {
    WAITING.with(|all| {
        let mut all = all.borrow_mut();
        let done = all.take(number);
        if !done {
            all.register(number, context.waker());
        }
        done
    })
}

/// Waits until the call that takes something of a future would not suspend the whole program, or nothing else goes on.
pub(crate) struct Ready(pub u32);

impl Future for Ready {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if is_done(self.0, context) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        WAITING.with(|all| all.borrow_mut().forget(self.0));
    }
}

/// Suspends the task for a time.
pub async fn sleep(time: Duration) -> Result<()> {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX); // 584 years
    HostFuture::new(raw::core::sleep(nanoseconds)?, raw::core::await_number).await.map(|_| ())
}
