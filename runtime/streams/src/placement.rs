//! Where a worker runs: on a thread of its own, or on the current runtime.
//!
//! Invariants: a worker that panics is an error of the instance, never a silence.
//! Never: decides anything about the work.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::config::{Placement, StreamsConfig};
use crate::error::StreamsError;
use crate::worker::Worker;

/// The end of a worker.
pub(crate) struct WorkerOutcome {
    number: usize,
    outcome: Option<oneshot::Receiver<Result<(), StreamsError>>>,
}

impl Future for WorkerOutcome {
    type Output = Result<(), StreamsError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let number = self.number;
        let Some(outcome) = &mut self.outcome else {
            // Asked again after the end was told: there is nothing more to say.
            return Poll::Ready(Ok(()));
        };
        let ended = match Pin::new(outcome).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(ended) => ended,
        };
        self.outcome = None;
        Poll::Ready(ended.unwrap_or_else(|_| Err(StreamsError::WorkerPanicked { number })))
    }
}

/// Starts a worker where the settings say.
pub(crate) fn place(
    config: &StreamsConfig,
    number: usize,
    worker: Worker,
) -> Result<WorkerOutcome, StreamsError> {
    let (done, outcome) = oneshot::channel();
    match config.placement {
        Placement::Runtime => {
            tokio::spawn(async move {
                let _ = done.send(worker.run().await);
            });
        }
        Placement::Threads => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .map_err(|source| StreamsError::Thread { source })?;
            std::thread::Builder::new()
                .name(format!("millstream-{number}"))
                .spawn(move || {
                    let _ = done.send(runtime.block_on(worker.run()));
                })
                .map_err(|source| StreamsError::Thread { source })?;
        }
    }
    Ok(WorkerOutcome {
        number,
        outcome: Some(outcome),
    })
}
