//! Several futures at once, each polled only if something has woken it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{sleep, Flag};
use crate::error::{Code, Error, Result};

thread_local! {
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
    let mut tasks: Vec<Task<F>> = futures.into_iter().map(|one| Task::new(Box::pin(one))).collect();
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

/// Futures to which more may be added at any time. They go on while `next` or `beside` is awaited; dropped, those that
/// are left end.
pub struct Tasks<'a, T> {
    tasks: Vec<Task<dyn Future<Output = T> + 'a>>,
}

impl<'a, T> Tasks<'a, T> {
    /// None as yet.
    pub fn new() -> Self {
        Tasks { tasks: Vec::new() }
    }

    /// Adds a future.
    pub fn add(&mut self, future: impl Future<Output = T> + 'a) {
        self.tasks.push(Task::new(Box::pin(future)));
    }

    /// How many were added, and not taken by `next`.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The value of one that is done, as soon as there is one; None: all values were taken.
    pub async fn next(&mut self) -> Option<T> {
        let _several = Several::of(self.tasks.len());
        PollFn(|context: &mut Context<'_>| {
            let place = (0..self.tasks.len()).find(|place| self.tasks[*place].is_done(context));
            match place.map(|place| self.tasks.remove(place).value) {
                Some(value) => Poll::Ready(value),
                None if self.tasks.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// What another future gives; the tasks go on meanwhile.
    pub async fn beside<F: Future>(&mut self, future: F) -> F::Output {
        let _several = Several::of(self.tasks.len() + 1);
        let mut future = Box::pin(future);
        PollFn(move |context: &mut Context<'_>| {
            for task in &mut self.tasks {
                task.is_done(context);
            }
            future.as_mut().poll(context)
        })
        .await
    }
}

impl<T> Default for Tasks<'_, T> {
    fn default() -> Self {
        Tasks::new()
    }
}

/// A future among several, polled only if something has woken it.
struct Task<F: Future + ?Sized> {
    future: Option<Pin<Box<F>>>,
    value: Option<F::Output>,
    flag: Option<(Arc<Flag>, Waker)>,
}

impl<F: Future + ?Sized> Task<F> {
    fn new(future: Pin<Box<F>>) -> Self {
        Task { future: Some(future), value: None, flag: None }
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
