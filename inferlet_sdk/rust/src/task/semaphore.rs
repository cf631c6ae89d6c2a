//! A bound on what goes on at once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Gives so many permits at a time; who asks for another one waits.
pub(crate) struct Semaphore {
    most: usize,
    given: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

/// Given back where it is dropped.
pub(crate) struct Permit<'a>(&'a Semaphore);

struct Released<'a>(&'a Semaphore, bool);

impl Semaphore {
    pub fn new(most: usize) -> Self {
        Semaphore { most, given: Cell::default(), waiting: RefCell::default() }
    }

    pub async fn acquire(&self) -> Permit<'_> {
        while self.given.get() == self.most {
            self.released().await;
        }
        self.given.set(self.given.get() + 1);
        Permit(self)
    }

    /// Whether all permits are there.
    pub fn is_idle(&self) -> bool {
        self.given.get() == 0
    }

    /// Waits until a permit may have been given back.
    pub fn released(&self) -> impl Future<Output = ()> + '_ {
        Released(self, false)
    }
}

impl Future for Released<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.1, true) {
            return Poll::Ready(());
        }
        let mut waiting = self.0.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.given.set(self.0.given.get() - 1);
        for waker in self.0.waiting.take() {
            waker.wake(); // all of them, as one may be gone
        }
    }
}
