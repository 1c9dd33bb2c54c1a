//! Requests as they arrive at the broker: counted, so that a strike can follow one; told, where the
//! run is to be read.
//!
//! Invariants: a request is counted when it arrives, before the broker sees it.
//! Never: changes or delays a frame.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream::formats::protocol::{ApiKey, Decoder};
use millstream::testing::{Direction, FrameEvent, SimulatedNetwork};
use tokio::sync::Notify;

use super::describe::Describer;
use super::history::Record;

/// What has arrived so far, over all networks.
#[derive(Debug)]
pub(super) struct Arrivals {
    record: Record,
    describer: Describer,
    counts: Mutex<BTreeMap<(i16, String), u64>>,
    arrived: Notify,
}

impl Arrivals {
    pub(super) fn new(record: Record) -> Self {
        let (describer, counts) = (Describer::default(), Mutex::default());
        Self {
            record,
            describer,
            counts,
            arrived: Notify::new(),
        }
    }

    /// Looks at every frame of a network from now on.
    pub(super) fn watch(self: &Arc<Self>, network: &SimulatedNetwork) {
        let arrivals = Arc::clone(self);
        network.observe(move |event| arrivals.note(event));
    }

    fn note(&self, event: &FrameEvent<'_>) {
        if self.record.prints()
            && let Some(text) = self.describer.describe(event)
        {
            self.record.say(|| text);
        }
        if event.direction == Direction::Request
            && event.arrived
            && let Ok(api) = Decoder::new(event.frame.clone()).i16()
        {
            let key = (api, event.network.to_owned());
            *self.lock().entry(key).or_default() += 1;
            self.arrived.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(i16, String), u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, api: ApiKey, network: Option<&str>) -> u64 {
        let counts = self.lock();
        let counted = counts.iter().filter(|((key, name), _)| {
            *key == api as i16 && network.is_none_or(|network| network == name)
        });
        counted.map(|(_, count)| count).sum()
    }

    /// Waits until this many more of these requests have arrived, over whichever network.
    pub(super) async fn wait_for(&self, api: ApiKey, more: u64) {
        let goal = self.count(api, None) + more;
        while self.count(api, None) < goal {
            self.arrived.notified().await;
        }
    }

    /// Waits until another one of these requests has arrived over this network.
    pub(super) async fn wait_on(&self, network: &SimulatedNetwork, api: ApiKey) {
        let name = Some(network.name());
        let before = self.count(api, name);
        while self.count(api, name) == before {
            self.arrived.notified().await;
        }
    }
}
