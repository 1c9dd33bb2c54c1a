//! EndTxn 0–5: the commit or abort of a transaction.
//!
//! Deviations: Kafka answers when the outcome is logged; here the markers are written and durable
//! as well, so a read_committed reader sees what was committed before the client hears of it.
//!
//! Invariants: from version 5 on every success answers with the pair for the next transaction.
//! Never: ends a transaction for an epoch that is not its owner's.

use std::sync::Arc;

use millstream_log::failpoint;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::{EndTxnRequest, EndTxnResponse};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::transaction::{CURRENT_VERSION, Identity};

/// The first version whose transactions bump the epoch.
const BUMP_VERSION: i16 = 5;
/// The first version whose clients know PRODUCER_FENCED.
const FENCED_VERSION: i16 = 2;

/// Ends the transaction and answers once that is visible.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: EndTxnRequest,
) -> EndTxnResponse {
    let producer = Identity {
        id: request.producer_id,
        epoch: request.producer_epoch,
    };
    let client_version = if context.api_version >= BUMP_VERSION {
        CURRENT_VERSION
    } else {
        0
    };
    let answer = node
        .transactions
        .end_transaction(
            node,
            &request.transactional_id,
            producer,
            request.committed,
            client_version,
            || context.release_turn(),
        )
        .await;
    failpoint::hit("broker.before-end-answer");
    let older = context.api_version < FENCED_VERSION && answer.error == ErrorCode::PRODUCER_FENCED;
    EndTxnResponse {
        error_code: if older {
            ErrorCode::INVALID_PRODUCER_EPOCH
        } else {
            answer.error
        },
        producer_id: answer.producer.id,
        producer_epoch: answer.producer.epoch,
        ..Default::default()
    }
}
