//! A value that tasks wait on, woken in the order in which they began to wait.
//!
//! tokio's `watch` spreads its waiters at random; here the order shows in who goes on first, so it
//! has to follow from what happened.
//!
//! Invariants: a change that a waiter waits for is never missed; waiters go on first come, first
//! served.
//! Never: keeps its owner alive; a waiter that outlives the owner is told so.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A value and who waits for it to change.
#[derive(Debug)]
pub(crate) struct Observed<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<T> {
    value: T,
    owned: bool,
}

/// The owner is gone: the value never changes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerGone;

impl<T: Clone + Send + 'static> Observed<T> {
    pub(crate) fn new(value: T) -> Self {
        let state = Mutex::new(State { value, owned: true });
        let changed = Notify::new();
        Self {
            shared: Arc::new(Shared { state, changed }),
        }
    }

    /// The value now.
    pub(crate) fn get(&self) -> T {
        self.shared.lock().value.clone()
    }

    /// Changes the value; `change` says whether anybody has to look.
    pub(crate) fn change(&self, change: impl FnOnce(&mut T) -> bool) {
        let changed = change(&mut self.shared.lock().value);
        if changed {
            self.shared.changed.notify_waiters();
        }
    }

    /// Waits until `holds` is true of the value, and answers that value. Cancellation-safe.
    pub(crate) fn wait_for<F: FnMut(&T) -> bool + Send>(
        &self,
        mut holds: F,
    ) -> impl Future<Output = Result<T, OwnerGone>> + Send + use<T, F> {
        let shared = Arc::clone(&self.shared);
        async move {
            loop {
                let mut changed = std::pin::pin!(shared.changed.notified());
                changed.as_mut().enable();
                {
                    let state = shared.lock();
                    if holds(&state.value) {
                        return Ok(state.value.clone());
                    }
                    if !state.owned {
                        return Err(OwnerGone);
                    }
                }
                changed.await;
            }
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Observed<T> {
    fn drop(&mut self) {
        self.shared.lock().owned = false;
        self.shared.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiters_go_on_in_the_order_in_which_they_came() {
        let value = Observed::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..40)
            .map(|number| {
                let (reached, order) = (value.wait_for(|value| *value > 0), Arc::clone(&order));
                tokio::spawn(async move {
                    assert_eq!(reached.await, Ok(1));
                    order.lock().expect("no panic").push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        value.change(|value| {
            *value = 1;
            true
        });
        for waiter in waiters {
            waiter.await.expect("ends");
        }
        assert_eq!(
            *order.lock().expect("no panic"),
            (0..40).collect::<Vec<_>>()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_outlives_the_owner_is_told_so() {
        let value = Observed::new(0);
        let waits = tokio::spawn(value.wait_for(|value| *value > 0));
        tokio::task::yield_now().await;
        drop(value);
        assert_eq!(waits.await.expect("ends"), Err(OwnerGone));
    }
}
