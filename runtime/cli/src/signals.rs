//! SIGTERM and SIGINT: the ways to ask for an end.
//!
//! Invariants: from `new` on, neither ends the process by itself.
//! Never: decides what an end means.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one. Cancelling it loses none.
    pub(crate) async fn any(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
