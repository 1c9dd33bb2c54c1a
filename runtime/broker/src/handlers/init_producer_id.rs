//! InitProducerId 0–5: a producer id and epoch, and the fencing of whoever had them before.
//!
//! Deviations: an open transaction is fenced only by a new instance or by its owner's current
//! epoch; Kafka lets an older epoch of the same producer id abort it as well.
//!
//! Invariants: the answer waits until the new epoch, or the block of ids, is durable.
//! Never: a two-phase commit; versions with it are not served.

use std::sync::Arc;

use millstream_protocol::ErrorCode;
use millstream_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::transaction::Identity;

/// The first version whose clients know PRODUCER_FENCED.
const FENCED_VERSION: i16 = 4;

/// Answers with the pair to use from now on.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let told = Identity {
        id: request.producer_id,
        epoch: request.producer_epoch,
    };
    let expected = match (told.id, told.epoch) {
        (-1, -1) => None,
        (-1, _) | (_, -1) => return failed(ErrorCode::INVALID_REQUEST, context.api_version),
        _ => Some(told),
    };
    let answer = node
        .transactions
        .init_producer_id(
            node,
            request.transactional_id.as_deref(),
            request.transaction_timeout_ms,
            expected,
            || context.release_turn(),
        )
        .await;
    if !answer.error.is_ok() {
        return failed(answer.error, context.api_version);
    }
    InitProducerIdResponse {
        producer_id: answer.producer.id,
        producer_epoch: answer.producer.epoch,
        ..Default::default()
    }
}

fn failed(error: ErrorCode, api_version: i16) -> InitProducerIdResponse {
    let older = api_version < FENCED_VERSION && error == ErrorCode::PRODUCER_FENCED;
    let error_code = if older {
        ErrorCode::INVALID_PRODUCER_EPOCH
    } else {
        error
    };
    InitProducerIdResponse {
        error_code,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    }
}
