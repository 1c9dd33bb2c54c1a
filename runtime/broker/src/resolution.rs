//! Which topics regular expressions match: found away from every lock, and remembered.
//!
//! ```text
//! heartbeat ─▶ resolve: known and new enough? ──yes──────────────────────▶ view ─▶ group
//!                 └─ no ─▶ one new and one known at a time, in slices of names ──┘
//! ```
//!
//! Invariants:
//! - new expressions are matched one at a time, and known ones beside them, but again only when
//!   names of topics have come or gone and ten times as long has passed as it took; until then the
//!   last answer counts;
//! - a view that is not of the present topics has a version that no table has.
//!
//! Never: matches under a lock that a group or a topic needs.

use crate::group::TopicShape;
use crate::group::TopicTable;
use crate::node::Node;
use crate::pattern::Pattern;
use crate::topics::PartitionTable;
use millstream_protocol::ErrorCode;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Names of topics.
pub(crate) type Names = Arc<[Arc<str>]>;

/// What may be remembered, in bytes.
const KNOWN_BYTES_MAX: usize = 8 << 20;
/// How many names are looked at before others get the thread.
const SLICE: usize = 64;
/// How many times as long as it took an expression is not looked at again.
const REST: i64 = 10;

/// What an expression matched.
#[derive(Clone, Debug)]
struct Found {
    names: Names,
    /// Of the names of all topics, when it was.
    version: u64,
    /// Before that it is not looked at again.
    again_ms: i64,
}

/// What expressions matched.
#[derive(Debug, Default)]
pub(crate) struct Resolutions {
    known: Mutex<Known>,
    /// Held by who matches one that is not known.
    lane: Arc<tokio::sync::Mutex<()>>,
    /// Held by who matches one again: members that are there do not wait behind those that come.
    lane_again: Arc<tokio::sync::Mutex<()>>,
    outdated_views: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    by_regex: FxHashMap<String, Found>,
    bytes: usize,
}

impl Resolutions {
    fn known(&self, regex: &str) -> Option<Found> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.by_regex.get(regex).cloned()
    }

    /// The topics that an expression matched when it was last looked at; none if that is long ago.
    pub(crate) fn names(&self, regex: &str) -> Option<Names> {
        self.known(regex).map(|found| found.names)
    }

    fn remember(&self, regex: &str, found: Found) {
        let size = |names: &Names| regex.len() + names.len() * size_of::<Arc<str>>() + 128;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = known.by_regex.remove(regex) {
            known.bytes -= size(&old.names);
        }
        let added = size(&found.names);
        if known.bytes + added > KNOWN_BYTES_MAX {
            *known = Known::default();
        }
        known.bytes += added;
        known.by_regex.insert(regex.to_owned(), found);
    }

    /// Forgets all, as it does when there is more than it may remember.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known::default();
    }

    /// Held, it keeps new expressions from being matched.
    #[cfg(test)]
    pub(crate) async fn hold(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.lane.clone().lock_owned().await
    }
}

/// The topics, and which of them some expressions match.
#[derive(Debug)]
pub(crate) struct View<'a> {
    table: &'a PartitionTable,
    version: u64,
    names: BTreeMap<String, Names>,
}

impl View<'_> {
    /// Whether it knows of all of these expressions.
    pub(crate) fn covers(&self, regexes: &BTreeSet<String>) -> bool {
        let mut regexes = regexes.iter();
        regexes.all(|regex| self.names.contains_key(regex))
    }
}

impl TopicTable for View<'_> {
    fn version(&self) -> u64 {
        self.version
    }

    fn shape(&self, name: &str) -> Option<TopicShape> {
        self.table.shape(name)
    }

    fn matching(&self, regex: &str) -> Names {
        self.names.get(regex).cloned().unwrap_or_default()
    }
}

impl Node {
    /// The topics, and which of them these expressions match. Cancellation-safe.
    pub(crate) async fn resolve(&self, regexes: &BTreeSet<String>) -> Result<View<'_>, ErrorCode> {
        let table = &self.partitions;
        let mut view = View {
            table,
            // Read first: what comes in between is seen the next time.
            version: table.version(),
            names: BTreeMap::new(),
        };
        let mut is_outdated = false;
        for regex in regexes {
            let (names, is_old) = self.resolve_one(regex).await?;
            is_outdated |= is_old;
            view.names.insert(regex.clone(), names);
        }
        if is_outdated {
            let count = &table.resolutions.outdated_views;
            view.version = u64::MAX - count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(view)
    }

    /// What one expression matches, and whether names have come or gone since.
    async fn resolve_one(&self, regex: &str) -> Result<(Names, bool), ErrorCode> {
        let resolutions = &self.partitions.resolutions;
        let is_new = |found: &Found| found.version == self.partitions.names_version();
        let known = resolutions.known(regex);
        let _lane = match known {
            Some(found) if is_new(&found) => return Ok((found.names, false)),
            Some(found) => match resolutions.lane_again.clone().try_lock_owned() {
                Ok(lane) if found.again_ms <= self.now_ms() => lane,
                _ => return Ok((found.names, true)),
            },
            None => resolutions.lane.clone().lock_owned().await,
        };
        if let Some(found) = resolutions.known(regex)
            && is_new(&found)
        {
            return Ok((found.names, false));
        }
        let names = self.look_at(regex).await?;
        Ok((names, false))
    }

    /// Matches an expression against all names.
    async fn look_at(&self, regex: &str) -> Result<Names, ErrorCode> {
        let table = &self.partitions;
        let began_ms = self.now_ms();
        let version = table.names_version();
        // One that is not understood matches nothing; who brings it is told so.
        let pattern = Pattern::parse(regex).ok().map(Arc::new);
        let all: Vec<Arc<str>> = match pattern {
            Some(_) => table.names(),
            None => Vec::new(),
        };
        let mut names: Vec<Arc<str>> = Vec::new();
        for slice in all.chunks(SLICE) {
            let (slice, pattern) = (slice.to_vec(), pattern.clone());
            let matches = move |name: &Arc<str>| pattern.as_ref().is_some_and(|p| p.matches(name));
            let work = move || slice.into_iter().filter(matches).collect::<Vec<_>>();
            let matched = self.config.placement.blocking(work).await;
            names.extend(matched.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)?);
        }
        let took_ms = self.now_ms().saturating_sub(began_ms);
        let found = Found {
            names: names.into(),
            version,
            again_ms: self.now_ms().saturating_add(took_ms.saturating_mul(REST)),
        };
        table.resolutions.remember(regex, found.clone());
        Ok(found.names)
    }
}
