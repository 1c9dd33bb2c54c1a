//! Ending a transaction that no coordinator will end any more.
//!
//! Invariants: the marker is an abort, for one producer in one partition, and goes to the leader.
//! Never: chooses what to abort; the caller has looked (`describe_producers`).

use futures::future::BoxFuture;
use millstream_protocol::messages::WriteTxnMarkersRequest;
use millstream_protocol::messages::write_txn_markers::{WritableTxnMarker, WritableTxnMarkerTopic};
use millstream_protocol::{ErrorCode, TopicPartition};

use super::{Admin, AdminError, check};

impl Admin {
    /// Aborts the open transaction of a producer in one partition, past its coordinator: for a
    /// transaction that hangs because its coordinator has forgotten it. Takes what
    /// [`describe_producers`](Self::describe_producers) says of the producer.
    ///
    /// # Errors
    /// Where the leader does not answer or refuses (`INVALID_PRODUCER_EPOCH`: the producer has
    /// moved on).
    pub fn abort_hanging_transaction<'a>(
        &'a self,
        partition: &'a TopicPartition,
        producer_id: i64,
        producer_epoch: i16,
        coordinator_epoch: i32,
    ) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let call = "abort the transaction in";
            let topic = WritableTxnMarkerTopic {
                name: partition.topic.to_string(),
                partition_indexes: vec![partition.partition],
            };
            let marker = WritableTxnMarker {
                producer_id,
                producer_epoch,
                transaction_result: false,
                topics: vec![topic],
                // A coordinator that never wrote a marker has none; any coordinator's is at
                // least 0.
                coordinator_epoch: coordinator_epoch.max(0),
                ..Default::default()
            };
            let request = WriteTxnMarkersRequest {
                markers: vec![marker],
            };
            let leaders = self
                .by_leader(call, std::slice::from_ref(partition))
                .await?;
            for node in leaders.into_keys() {
                let answer = self.ask_node(node, &request).await?;
                let codes: Vec<ErrorCode> = answer
                    .markers
                    .into_iter()
                    .flat_map(|marker| marker.topics)
                    .flat_map(|topic| topic.partitions)
                    .map(|partition| partition.error_code)
                    .collect();
                let code = codes
                    .into_iter()
                    .find(|code| !code.is_ok())
                    .unwrap_or(ErrorCode::NONE);
                check(call, &partition.to_string(), code, None)?;
            }
            Ok(())
        })
    }
}
