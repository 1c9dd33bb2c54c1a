//! What the two ends of a connection tell each other beside the frames.
//!
//! Invariants: an ending is noted once, before the channel of incoming frames closes.
//! Never: wakes anybody; whoever waits for frames learns of the end by their absence.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::security::SecurityError;

/// Shared by the transport, which moves the bytes, and the connection, which knows their meaning.
#[derive(Debug, Default)]
pub struct Link {
    established: AtomicBool,
    ending: OnceLock<Ending>,
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// It was lost; another may hold.
    Lost(Arc<str>),
    /// Client and broker do not trust each other; another will end the same way.
    Refused(Arc<SecurityError>),
}

impl Link {
    /// The broker has answered sensibly and, where that was asked for, both sides have proven who
    /// they are: from now on large frames are taken.
    pub fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
    }

    /// Whether [`establish`](Self::establish) was called.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.established.load(Ordering::Relaxed)
    }

    /// Notes why the connection ends; the first word counts.
    pub fn end(&self, ending: Ending) {
        // A second ending follows from the first.
        let _ = self.ending.set(ending);
    }

    /// Why it ended, if that is known.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }
}
