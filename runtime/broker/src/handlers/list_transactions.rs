//! ListTransactions 0–2: the transactional ids that pass the request's filters.
//!
//! Invariants: ids come in their order.
//! Never: changes anything.

use std::sync::Arc;

use millstream_protocol::ErrorCode;
use millstream_protocol::messages::list_transactions::TransactionState;
use millstream_protocol::messages::{ListTransactionsRequest, ListTransactionsResponse};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::pattern::Pattern;
use crate::transaction::State;

/// How many bytes of ids are matched before the request is looked after again.
const SLICE_BYTES: usize = 8 << 10;

/// Lists what passes all filters; an empty filter lets everything pass.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse {
    let (known, unknown): (Vec<String>, Vec<String>) = request
        .state_filters
        .into_iter()
        .partition(|name| State::from_name(name).is_some());
    let states: Vec<State> = known
        .iter()
        .filter_map(|name| State::from_name(name))
        .collect();
    let any_state = states.is_empty() && unknown.is_empty();
    let pattern = request
        .transactional_id_pattern
        .filter(|pattern| !pattern.is_empty());
    let pattern = match pattern.as_deref().map(Pattern::parse) {
        Some(Err(_)) => {
            let error_code = ErrorCode::INVALID_REGULAR_EXPRESSION;
            return ListTransactionsResponse {
                error_code,
                ..Default::default()
            };
        }
        Some(Ok(pattern)) => Some(pattern),
        None => None,
    };
    let now_ms = node.wall_ms();
    let producer_ids = &request.producer_id_filters;
    let selected = node.transactions.list(|transactional_id, transaction| {
        let age_ms = now_ms.saturating_sub(transaction.start_ms);
        let selected = (any_state || states.contains(&transaction.state))
            && (producer_ids.is_empty() || producer_ids.contains(&transaction.producer_id))
            && (request.duration_filter < 0 || age_ms > request.duration_filter);
        selected.then(|| TransactionState {
            transactional_id: transactional_id.to_owned(),
            producer_id: transaction.producer_id,
            transaction_state: transaction.state.name().to_owned(),
        })
    });
    let transaction_states = match pattern {
        None => Ok(selected),
        Some(pattern) => matching(node, context, Arc::new(pattern), selected).await,
    };
    match transaction_states {
        Ok(transaction_states) => ListTransactionsResponse {
            unknown_state_filters: unknown,
            transaction_states,
            ..Default::default()
        },
        Err(error_code) => ListTransactionsResponse {
            error_code,
            ..Default::default()
        },
    }
}

/// Those whose ids match, looked at away from every lock, and not to the end when nobody waits for
/// it any more.
async fn matching(
    node: &Node,
    context: &RequestContext,
    pattern: Arc<Pattern>,
    all: Vec<TransactionState>,
) -> Result<Vec<TransactionState>, ErrorCode> {
    let mut matching = Vec::new();
    let mut all = all.into_iter().peekable();
    while all.peek().is_some() {
        let (mut slice, mut bytes) = (Vec::new(), 0);
        while bytes < SLICE_BYTES
            && let Some(state) = all.next()
        {
            bytes += state.transactional_id.len();
            slice.push(state);
        }
        let pattern = pattern.clone();
        let matches = move |state: &TransactionState| pattern.matches(&state.transactional_id);
        let work = move || slice.into_iter().filter(matches).collect::<Vec<_>>();
        tokio::select! {
            biased;
            () = context.ending() => return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE),
            matched = node.config.placement.blocking(work) => {
                matching.extend(matched.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)?);
            }
        }
    }
    Ok(matching)
}
