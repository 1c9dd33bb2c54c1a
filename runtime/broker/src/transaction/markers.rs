//! Control batches that end a transaction on every partition it touched.
//!
//! Invariants: a marker of transaction version 2 carries an epoch above that of the data.
//! Invariants: an offsets partition has applied the marker before it counts as written.
//! Never: decides an outcome; it is logged before the first marker is written.

use millstream_log::{AppendOrigin, failpoint};
use millstream_protocol::{ControlMarker, ErrorCode, TopicPartition, control_batch};

use super::model::{Identity, Transaction};
use super::state::State;
use crate::node::Node;
use crate::topics::CONSUMER_OFFSETS_TOPIC;

/// The epoch of the only coordinator there is.
const COORDINATOR_EPOCH: i32 = 0;

/// One transaction's end on one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Whose transaction ends, with the epoch that the marker carries.
    pub(crate) producer: Identity,
    /// How.
    pub(crate) commit: bool,
    /// The epoch of the coordinator that says so.
    pub(crate) coordinator_epoch: i32,
    /// Under which rules the marker's epoch is checked.
    pub(crate) transaction_version: i16,
}

/// Writes the markers of a prepared transaction wherever they are missing.
pub(super) fn write_all(node: &Node, transaction: &Transaction) -> Result<(), ErrorCode> {
    let marker = Marker {
        producer: transaction.identity(),
        commit: transaction.state == State::PrepareCommit,
        coordinator_epoch: COORDINATOR_EPOCH,
        transaction_version: transaction.client_version,
    };
    let mut first_failure = Ok(());
    for (written, partition) in transaction.partitions.iter().enumerate() {
        if written > 0 {
            failpoint::hit("broker.between-markers");
        }
        match write_marker(node, partition, marker) {
            Ok(_) => {}
            // A partition that is gone has nothing to end.
            Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {}
            // Somebody newer has ended it already.
            Err(
                error @ (ErrorCode::INVALID_PRODUCER_EPOCH
                | ErrorCode::TRANSACTION_COORDINATOR_FENCED),
            ) => tracing::info!(%partition, %error, ?marker, "marker is not needed any more"),
            Err(error) => {
                tracing::warn!(%partition, %error, ?marker, "marker not written, will be retried");
                first_failure = first_failure.and(Err(error));
            }
        }
    }
    first_failure
}

/// Writes one marker; returns the journal position after it.
pub(crate) fn write_marker(
    node: &Node,
    partition: &TopicPartition,
    marker: Marker,
) -> Result<u64, ErrorCode> {
    let found = node
        .partition(&partition.topic, partition.partition)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let control = ControlMarker::new(marker.commit, marker.coordinator_epoch);
    let Identity { id, epoch } = marker.producer;
    let batch = control_batch(control, id, epoch, node.now_ms());
    let origin = AppendOrigin::Marker {
        coordinator_epoch: marker.coordinator_epoch,
        transaction_version: marker.transaction_version,
    };
    let appended = found
        .append(batch, origin)
        .map_err(|error| error.error_code())?;
    if &*partition.topic == CONSUMER_OFFSETS_TOPIC {
        node.groups.on_transaction_marker(
            partition.partition,
            id,
            marker.commit,
            appended.base_offset,
        );
    }
    Ok(appended.journal_position)
}
