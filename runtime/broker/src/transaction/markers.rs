//! Control batches that end a transaction on every partition it touched.
//!
//! Invariants: a marker of transaction version 2 carries an epoch above that of the data.
//! Invariants: an offsets partition has applied the marker before it counts as written; a marker
//! that is refused counts as written only where the transaction is not open any more.
//! Never: decides an outcome; it is logged before the first marker is written.

use millstream_log::{AppendOrigin, failpoint};
use millstream_protocol::{ControlMarker, ErrorCode, TopicPartition, control_batch};

use super::model::{Identity, Transaction};
use super::state::State;
use crate::node::Node;
use crate::topics::CONSUMER_OFFSETS_TOPIC;

/// The epoch of the only coordinator there is. Were a marker of a higher one written, the
/// coordinator's own would be refused from then on.
pub(crate) const COORDINATOR_EPOCH: i32 = 0;

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
        if has_ended(node, partition, marker.producer) {
            // By an earlier attempt, which failed elsewhere.
            continue;
        }
        match write_marker(node, partition, marker) {
            Ok(_) => {}
            // A partition that is gone has nothing to end.
            Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {}
            // Somebody newer has ended it already.
            Err(
                error @ (ErrorCode::INVALID_PRODUCER_EPOCH
                | ErrorCode::TRANSACTION_COORDINATOR_FENCED),
            ) if !is_open(node, partition, marker.producer) => {
                tracing::info!(%partition, %error, ?marker, "marker is not needed any more");
            }
            Err(error) => {
                tracing::warn!(%partition, %error, ?marker, "marker not written, will be retried");
                first_failure = first_failure.and(Err(error));
            }
        }
    }
    first_failure
}

/// Whether the partition knows the marker's epoch, or a newer one, with nothing open under it.
fn has_ended(node: &Node, partition: &TopicPartition, producer: Identity) -> bool {
    let found = node.partition(&partition.topic, partition.partition);
    let known = found.and_then(|found| found.log().producer(producer.id));
    known.is_some_and(|known| {
        known.producer_epoch >= producer.epoch && known.current_transaction_start_offset < 0
    })
}

fn is_open(node: &Node, partition: &TopicPartition, producer: Identity) -> bool {
    node.partition(&partition.topic, partition.partition)
        .is_some_and(|found| found.log().has_open_transaction(producer.id))
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
    let batch = control_batch(control, id, epoch, node.wall_ms());
    let origin = AppendOrigin::Marker {
        coordinator_epoch: marker.coordinator_epoch,
        transaction_version: marker.transaction_version,
    };
    let append = || {
        found
            .append(batch, origin)
            .map_err(|error| error.error_code())
    };
    let appended = if &*partition.topic == CONSUMER_OFFSETS_TOPIC {
        node.groups
            .append_marker(partition.partition, id, marker.commit, append)?
    } else {
        append()?
    };
    Ok(appended.journal_position)
}
