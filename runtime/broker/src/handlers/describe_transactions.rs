//! DescribeTransactions 0: where transactional ids stand.
//!
//! Invariants: one answer an id, in the order asked.
//! Never: changes anything.

use std::sync::Arc;

use millstream_protocol::ErrorCode;
use millstream_protocol::messages::describe_transactions::{TopicData, TransactionState};
use millstream_protocol::messages::{DescribeTransactionsRequest, DescribeTransactionsResponse};

use crate::dispatch::RequestContext;
use crate::node::Node;

/// Describes every id that is asked for.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let ids = request.transactional_ids.into_iter();
    DescribeTransactionsResponse {
        transaction_states: ids.map(|id| describe(node, id)).collect(),
        ..Default::default()
    }
}

fn describe(node: &Node, transactional_id: String) -> TransactionState {
    let Some(transaction) = node.transactions.describe(&transactional_id) else {
        let error_code = if transactional_id.is_empty() {
            ErrorCode::INVALID_REQUEST
        } else {
            ErrorCode::TRANSACTIONAL_ID_NOT_FOUND
        };
        return TransactionState {
            error_code,
            transactional_id,
            ..Default::default()
        };
    };
    let mut topics: Vec<TopicData> = Vec::new();
    for partition in &transaction.partitions {
        match topics.last_mut() {
            Some(last) if last.topic == *partition.topic => {
                last.partitions.push(partition.partition);
            }
            _ => topics.push(TopicData {
                topic: partition.topic.to_string(),
                partitions: vec![partition.partition],
            }),
        }
    }
    TransactionState {
        error_code: ErrorCode::NONE,
        transactional_id,
        transaction_state: transaction.state.name().to_owned(),
        transaction_timeout_ms: transaction.timeout_ms,
        transaction_start_time_ms: transaction.start_ms,
        producer_id: transaction.producer_id,
        producer_epoch: transaction.epoch,
        topics,
    }
}
