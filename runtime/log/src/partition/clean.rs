//! What compaction needs of a partition: what there is to clean, and the moment of the swap.
//!
//! Invariants: files get and lose their names under the lock of names, which a log that closes
//! takes as well; readers that hold a replaced file go on with it, and look again where the list of
//! aborted transactions changed meanwhile.
//! Never: reads, writes or syncs a file under the lock of the state.

use super::PartitionLog;
use super::state::PartitionState;
use crate::compaction::manifest::{self, Manifest, Swap};
use crate::compaction::pass::{self, Cleaned, Source, Sources};
use crate::compaction::select::{Candidate, SegmentFacts, candidate, first_dirty, must_roll};
use crate::error::LogError;
use crate::failpoint;
use crate::partition_config::PartitionConfig;
use crate::segment::Segment;

impl PartitionLog {
    /// What can be cleaned: closed segments below the last stable offset and below `durable_end`,
    /// up to which the partition's own files are synced and the journal is not replayed. Without a
    /// journal the markers must be synced as well: a record that a power cut makes undecided again
    /// must not have taken the place of another.
    pub(crate) fn cleanable(
        &self,
        checkpoint: Option<i64>,
        durable_end: i64,
        now_ms: i64,
    ) -> Result<Candidate, LogError> {
        let mut state = self.lock();
        state.check_online()?;
        let config = self.config();
        let facts = state.facts(self, &config)?;
        let offsets = state.offsets();
        let from = first_dirty(checkpoint, offsets.log_start, offsets.log_end);
        let mut bound = offsets.last_stable.min(durable_end);
        if durable_end < i64::MAX && !self.durability.is_journaled() {
            bound = bound.min(state.synced_stable);
        }
        Ok(candidate(&facts, from, bound, &config, now_ms))
    }

    /// Ends the active segment where that lets compaction at its records; says whether it did.
    pub(crate) fn roll_for_cleaning(
        &self,
        checkpoint: Option<i64>,
        now_ms: i64,
    ) -> Result<bool, LogError> {
        self.change(|state| {
            state.check_online()?;
            let config = self.config();
            let facts = state.facts(self, &config)?;
            let from = first_dirty(checkpoint, state.log_start, state.log_end);
            let rolls = must_roll(&facts, from, &config, now_ms);
            if rolls {
                state.roll(self)?;
            }
            Ok(rolls)
        })
    }

    /// Cleans what `candidate` says. Appends, reads and retention go on meanwhile.
    pub(crate) fn clean(
        &self,
        candidate: &Candidate,
        map_bytes_max: usize,
        now_ms: i64,
    ) -> Result<Cleaned, LogError> {
        pass::run(self, candidate, map_bytes_max, now_ms)
    }

    pub(crate) fn check_online(&self) -> Result<(), LogError> {
        self.lock().check_online()
    }

    /// The closed segments below `end`, and what is known of transactions and producers.
    pub(crate) fn cleaning_sources(&self, end: i64) -> Result<Sources, LogError> {
        let mut state = self.lock();
        state.check_online()?;
        let mut aborted = Vec::new();
        for segment in &mut state.segments {
            let entries = segment.aborted(self.storage.as_ref())?;
            aborted.extend(entries.iter().filter(|entry| entry.first_offset < end));
        }
        let ends = state.segments.iter().skip(1).map(Segment::base_offset);
        let closed = state.segments.iter().zip(ends);
        let segments = closed
            .take_while(|(_, segment_end)| *segment_end <= end)
            .map(|(segment, segment_end)| Source {
                base_offset: segment.base_offset(),
                end: segment_end,
                size_bytes: segment.size_bytes(),
                path: segment.path().to_owned(),
                file: segment.log().clone(),
            });
        Ok(Sources {
            segments: segments.collect(),
            aborted,
            producers: state
                .producers
                .entries()
                .iter()
                .map(|(id, _)| *id)
                .collect(),
            cleaned_below: state.cleaned_below,
        })
    }

    /// The files of a segment that is to replace others.
    pub(crate) fn create_cleaned(&self, base_offset: i64) -> Result<Segment, LogError> {
        let _names = self.names();
        self.check_online()?;
        Segment::create_cleaned(self.storage(), &self.directory, base_offset)
    }

    /// Removes cleaned files that do not take their place. A sync that failed is not tried again:
    /// it may have been for names that others wait for as well.
    pub(crate) fn abandon_cleaning(&self, cause: &LogError) {
        let _names = self.names();
        if cause.is_final() {
            self.lock().take_offline(cause.to_string());
        }
        if self.check_online().is_err() {
            // They go at the next opening.
            return;
        }
        if let Err(error) = manifest::sweep(self.storage(), &self.directory) {
            tracing::warn!(log = ?self.directory, %error, "cleaned files stay for now");
        }
    }

    /// Puts a cleaned segment, or nothing, in the place of those that it was made from, and says
    /// so. They are left alone when retention took one of them meanwhile.
    pub(crate) fn swap_in(
        &self,
        group: &[Source],
        cleaned: Option<Segment>,
    ) -> Result<bool, LogError> {
        let _names = self.names();
        let old: Vec<i64> = group.iter().map(|source| source.base_offset).collect();
        let end = group.last().map_or(0, |source| source.end);
        let mut manifest = {
            let state = self.lock();
            state.check_online()?;
            // A log's first segment says where it begins. It was another one when this was read.
            let takes_the_first = |at| at == 0 && cleaned.is_none();
            if state.place_of(&old).is_none_or(takes_the_first) {
                drop(state);
                return manifest::sweep(self.storage(), &self.directory).map(|()| false);
            }
            Manifest {
                cleaned_below: state.cleaned_below.max(end),
                swap: None,
            }
        };
        let swap = Swap {
            old,
            is_replaced: cleaned.is_some(),
        };
        // Names first, then what counts on them, here and below: not every file system keeps the
        // changes of one directory in their order.
        self.sync_directory()?;
        manifest.swap = Some(swap.clone());
        self.store_manifest(&manifest)?;
        failpoint::hit("log.compaction.before-renames");
        self.lock()
            .replace(self, &swap.old, cleaned, manifest.cleaned_below);
        manifest.swap = None;
        let settled = manifest::carry_out(self.storage(), &self.directory, &swap)
            .and_then(|()| self.sync_directory())
            .and_then(|()| manifest.store(self.storage(), &self.directory));
        failpoint::hit("log.compaction.after-swap");
        if let Err(error) = &settled {
            // Files and memory may disagree; the next opening finishes what the manifest says.
            self.lock().take_offline(error.to_string());
        }
        settled.map(|()| true)
    }

    fn sync_directory(&self) -> Result<(), LogError> {
        if !self.durability.syncs_files() {
            return Ok(());
        }
        self.storage
            .sync_dir(&self.directory)
            .map_err(|error| LogError::io("sync", &self.directory, error))
    }

    /// Writes the manifest that begins a swap. When it is not known whether it was, the log must
    /// not change any more.
    fn store_manifest(&self, manifest: &Manifest) -> Result<(), LogError> {
        let stored = manifest.store(self.storage(), &self.directory);
        if let Err(error) = &stored
            && error.is_final()
        {
            self.lock().take_offline(error.to_string());
        }
        stored
    }
}

impl PartitionState {
    /// What these settings ask for of the segments; they judge it, too.
    fn facts(
        &mut self,
        log: &PartitionLog,
        config: &PartitionConfig,
    ) -> Result<Vec<SegmentFacts>, LogError> {
        let storage = log.storage();
        let needs_first = config.max_compaction_lag_ms < i64::MAX;
        // Indexes that nobody asks for are not read: most logs have nothing to clean.
        let needs_largest = config.min_compaction_lag_ms > 0;
        let mut facts = Vec::with_capacity(self.segments.len());
        for segment in &mut self.segments {
            facts.push(SegmentFacts {
                base_offset: segment.base_offset(),
                size_bytes: segment.size_bytes(),
                first_timestamp: if needs_first {
                    segment.find_first_timestamp()?
                } else {
                    None
                },
                largest_timestamp: if needs_largest {
                    segment.largest(storage)?.map(|entry| entry.timestamp)
                } else {
                    None
                },
            });
        }
        Ok(facts)
    }

    /// Where in the list these segments are, one behind the other.
    fn place_of(&self, bases: &[i64]) -> Option<usize> {
        let first = bases.first()?;
        let index = self
            .segments
            .iter()
            .position(|segment| segment.base_offset() == *first)?;
        let found = self.segments.get(index..index + bases.len())?;
        // The last segment is the one that is written.
        let is_closed = index + bases.len() < self.segments.len();
        let same = found
            .iter()
            .map(Segment::base_offset)
            .eq(bases.iter().copied());
        (is_closed && same).then_some(index)
    }

    fn replace(
        &mut self,
        log: &PartitionLog,
        bases: &[i64],
        cleaned: Option<Segment>,
        cleaned_below: i64,
    ) {
        let index = self
            .place_of(bases)
            .expect("invariant: under the lock of names closed segments stay");
        let cleaned = cleaned.map(|mut segment| {
            segment.take_place(&log.directory);
            segment
        });
        self.segments.splice(index..index + bases.len(), cleaned);
        self.cleaned_below = cleaned_below;
        self.swaps += 1;
        self.tail.forget_below(cleaned_below);
        self.names_changed = true;
    }
}
