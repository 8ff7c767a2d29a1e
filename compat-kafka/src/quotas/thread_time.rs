//! The time for which a request keeps a thread busy.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// A future that measures for how long it was polled. Work elsewhere and waiting do not count.
pub(crate) struct ThreadTime<F> {
    future: F,
    time: Duration,
}

impl<F> ThreadTime<F> {
    pub(crate) fn of(future: F) -> ThreadTime<F> {
        ThreadTime { future, time: Duration::ZERO }
    }
}

impl<F: Future + Unpin> Future for ThreadTime<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let begun = Instant::now();
        let polled = Pin::new(&mut self.future).poll(context);
        self.time += begun.elapsed();
        Poll::Ready((ready!(polled), self.time))
    }
}
