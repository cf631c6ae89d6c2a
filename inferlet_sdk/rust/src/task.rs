//! Tasks: an executor for one program, and futures of the host.
//!
//! The guest is suspended as a whole, in one of two ways: if the program waits for one future, the call that takes its
//! value suspends it; if it waits for several, `wait` does, until one of them is done.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::raw;

/// The host gets a turn after so many polls in which a task has been woken: tasks that only wake each other must not keep
/// results from arriving.
const POLLS_BEFORE_YIELD: u32 = 32;

thread_local! {
    static WAITING: RefCell<Waiting> = RefCell::new(Waiting::default());
    static BESIDE: Cell<usize> = Cell::new(0); // futures that run beside another one
}

/// Whether nothing else goes on in the program, so that a call may suspend all of it.
pub(crate) fn is_alone() -> bool {
    BESIDE.with(Cell::get) == 0
}

/// Several futures that run at once.
struct Several(usize);

impl Several {
    fn of(count: usize) -> Self {
        let others = count.saturating_sub(1);
        BESIDE.with(|beside| beside.set(beside.get() + others));
        Several(others)
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        BESIDE.with(|beside| beside.set(beside.get() - self.0));
    }
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
    if let Ok(number) = raw::core::sleep(0) {
        let mut soon = HostFuture::new(number, raw::core::await_number);
        if Pin::new(&mut soon).poll(context).is_pending() {
            suspend();
            let _ = Pin::new(&mut soon).poll(context);
        }
    }
}

/// Suspends the guest until something is done for which a task waits.
fn suspend() {
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

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The number, which somebody else cares for from now on.
    pub fn into_number(mut self) -> u32 {
        self.is_taken = true;
        self.number
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
    let nanoseconds = u64::try_from(time.as_nanos()).map_err(|_| Error::invalid("sleep: the time is too long"))?;
    HostFuture::new(raw::core::sleep(nanoseconds)?, raw::core::await_number).await.map(|_| ())
}

/// What a future gives, or an error with `Code::TimedOut` if it takes longer; it is dropped then.
pub async fn timeout<T>(time: Duration, future: impl Future<Output = Result<T>>) -> Result<T> {
    match first(future, sleep(time)).await {
        First::This(value) => value,
        First::Other(slept) => {
            slept.and_then(|()| Err(Error::with(Code::TimedOut, format!("it took longer than {:?}", time))))
        }
    }
}

/// A future by a function.
struct PollFn<F>(F);

impl<F> Unpin for PollFn<F> {}

impl<T, F: FnMut(&mut Context<'_>) -> Poll<T>> Future for PollFn<F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        (self.0)(context)
    }
}

/// Which of two futures was done first, and its value.
pub enum First<A, B> {
    /// The first one.
    This(A),
    /// The second one.
    Other(B),
}

/// Waits for one of two futures, and drops the other.
pub async fn first<A: Future, B: Future>(this: A, other: B) -> First<A::Output, B::Output> {
    let _two = Several::of(2);
    let (mut this, mut other) = (Box::pin(this), Box::pin(other));
    PollFn(move |context: &mut Context<'_>| {
        if let Poll::Ready(value) = this.as_mut().poll(context) {
            return Poll::Ready(First::This(value));
        }
        other.as_mut().poll(context).map(First::Other)
    })
    .await
}

/// Runs futures at once; gives their values in order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    join_until(futures, |_| false).await
}

/// Runs futures at once; gives their values in order, or the first error, as soon as it is there: the other futures are
/// dropped then.
pub async fn try_join_all<T, E, F: Future<Output = Result<T, E>>>(
    futures: impl IntoIterator<Item = F>,
) -> Result<Vec<T>, E> {
    join_until(futures, Result::is_err).await.into_iter().collect()
}

/// Runs futures at once until all are done, or one with a value that ends it; the values that are there, in order.
async fn join_until<F: Future>(
    futures: impl IntoIterator<Item = F>,
    ends: impl Fn(&F::Output) -> bool,
) -> Vec<F::Output> {
    let mut tasks: Vec<Task<F>> = futures.into_iter().map(Task::new).collect();
    let _several = Several::of(tasks.len());
    PollFn(move |context: &mut Context<'_>| {
        let (mut all_done, mut is_over) = (true, false);
        for task in &mut tasks {
            all_done &= task.is_done(context);
            is_over |= task.value.as_ref().map_or(false, &ends);
        }
        if !all_done && !is_over {
            return Poll::Pending;
        }
        Poll::Ready(tasks.iter_mut().filter_map(|task| task.value.take()).collect())
    })
    .await
}

/// A future among several, polled only if something has woken it.
struct Task<F: Future> {
    future: Option<Pin<Box<F>>>,
    value: Option<F::Output>,
    flag: Option<(Arc<Flag>, Waker)>,
}

impl<F: Future> Task<F> {
    fn new(future: F) -> Self {
        Task { future: Some(Box::pin(future)), value: None, flag: None }
    }

    fn is_done(&mut self, context: &mut Context<'_>) -> bool {
        let future = match &mut self.future {
            Some(future) => future,
            None => return true,
        };
        let is_known = |(flag, _): &(Arc<Flag>, Waker)| {
            flag.parent.as_ref().map_or(false, |parent| parent.will_wake(context.waker()))
        };
        if !self.flag.as_ref().map_or(false, is_known) {
            let flag = Flag::new(Some(context.waker().clone())); // another task may have polled it before
            self.flag = Some((flag.clone(), Waker::from(flag)));
        }
        let (flag, waker) = self.flag.as_ref().expect("it was set");
        if !flag.take() {
            return false;
        }
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            self.future = None;
            self.value = Some(value);
            return true;
        }
        false
    }
}
