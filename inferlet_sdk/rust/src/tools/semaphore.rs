//! A bound on what goes on at once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Gives so many permits at a time; who asks for another one waits.
pub(crate) struct Semaphore {
    free: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

/// Given back where it is dropped.
pub(crate) struct Permit<'a>(&'a Semaphore);

struct Acquire<'a>(&'a Semaphore);

impl Semaphore {
    pub fn new(permits: usize) -> Self {
        Semaphore { free: Cell::new(permits), waiting: RefCell::default() }
    }

    pub async fn acquire(&self) -> Permit<'_> {
        Acquire(self).await
    }
}

impl<'a> Future for Acquire<'a> {
    type Output = Permit<'a>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit<'a>> {
        let free = self.0.free.get();
        if free == 0 {
            let mut waiting = self.0.waiting.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        self.0.free.set(free - 1);
        Poll::Ready(Permit(self.0))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        for waker in self.0.waiting.take() {
            waker.wake(); // all of them, as one may be gone
        }
    }
}
