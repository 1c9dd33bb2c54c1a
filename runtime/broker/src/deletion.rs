//! How topics go: out of the directory, out of the table, with what groups committed for them; at
//! last, with nobody waiting for it, their files.
//!
//! Invariants: a deletion is answered when it and the end of the offsets are as durable as the mode
//! promises. Where the power went between the two, what is left of the offsets names the id of a
//! topic that is gone, and is shown to no reader of a later one.
//! Never: half done because its request was cut.

use crate::node::Node;
use millstream_log::{LogError, Outcomes};
use millstream_protocol::{ErrorCode, Uuid};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Node {
    /// Deletes topics with all their data, each with an answer of its own; one that is given with
    /// its id only if that is the one that has the name by then. After an error a topic is served
    /// as before, unless it is gone and it is what groups committed for it that may come back.
    pub(crate) async fn delete_topics(
        self: &Arc<Self>,
        topics: Vec<(String, Option<Uuid>)>,
    ) -> Vec<Result<(), ErrorCode>> {
        let changing = self.partitions.lock_changes().await;
        let names: Vec<String> = topics.iter().map(|(name, _)| name.clone()).collect();
        let delete = move |node: &Node| node.delete_at_once(&topics);
        let outcomes = self.in_directory(changing, &names, delete).await;
        let Some(forgotten) = outcomes.iter().flatten().next().copied() else {
            return outcomes
                .into_iter()
                .map(|outcome| outcome.map(drop))
                .collect();
        };
        self.erase_deleted();
        let forgotten = match forgotten {
            Ok(position) => self.forgotten_for_good(position).await,
            Err(code) => Err(code),
        };
        let outcomes = outcomes.into_iter();
        outcomes.map(|outcome| outcome.and(forgotten)).collect()
    }

    /// The deletion as one piece of blocking work. For each topic that is gone: the journal
    /// position from which on their offsets stay forgotten.
    fn delete_at_once(
        &self,
        topics: &[(String, Option<Uuid>)],
    ) -> Outcomes<Result<Option<u64>, ErrorCode>> {
        let outcomes = self.directory.delete_identified_topics(topics)?;
        let deleted = topics.iter().zip(&outcomes);
        let deleted: BTreeSet<&str> = deleted
            .filter_map(|((name, _), outcome)| outcome.is_ok().then_some(name.as_str()))
            .collect();
        let entries = deleted
            .iter()
            .filter_map(|name| self.partitions.remove(name));
        for partition in entries.flat_map(|entry| entry.partitions.clone()) {
            // Whoever waits for records of it has waited long enough.
            partition.wake();
        }
        let mut forgotten = self.groups.forget_topics(&deleted);
        if forgotten.is_err() {
            // On a full disk the files that go make room for it.
            if let Err(error) = self.directory.erase_deleted_and_wait() {
                tracing::error!(%error, "files of deleted topics stay");
            }
            forgotten = self.groups.forget_topics(&deleted);
        }
        let outcomes = outcomes.into_iter();
        Ok(outcomes
            .map(|outcome| outcome.map(|()| forgotten))
            .collect())
    }

    async fn forgotten_for_good(&self, position: Option<u64>) -> Result<(), ErrorCode> {
        let Some(position) = position else {
            return Ok(());
        };
        let durable = self.durable(position).await;
        durable.map_err(|error| error.error_code())
    }

    /// Removes the files of deleted topics, and what creations have left or found in their way,
    /// with nobody waiting for it.
    pub(crate) fn erase_deleted(self: &Arc<Self>) {
        let (directory, placement) = (self.directory.clone(), self.config.placement);
        self.spawn(async move {
            match placement.blocking(move || directory.erase_deleted()).await {
                Ok(Ok(()) | Err(LogError::Closed)) => {}
                Ok(Err(error)) => tracing::error!(%error, "files of deleted topics stay"),
                Err(error) => tracing::error!(%error, "files of deleted topics stay"),
            }
        });
    }
}
