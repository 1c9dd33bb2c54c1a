//! ListTransactions 0–2: the transactional ids that pass the request's filters.
//!
//! Deviations: a pattern (version 2) may only be literal text with `.*` in it; Kafka takes any
//! RE2 expression. Others are answered with INVALID_REGULAR_EXPRESSION.
//!
//! Invariants: ids come in their order.
//! Never: changes anything.

use std::sync::Arc;

use millstream_protocol::ErrorCode;
use millstream_protocol::messages::list_transactions::TransactionState;
use millstream_protocol::messages::{ListTransactionsRequest, ListTransactionsResponse};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::transaction::State;

/// Lists what passes all filters; an empty filter lets everything pass.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
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
        Some(None) => {
            let error_code = ErrorCode::INVALID_REGULAR_EXPRESSION;
            return ListTransactionsResponse {
                error_code,
                ..Default::default()
            };
        }
        Some(pattern) => pattern,
        None => None,
    };
    let now_ms = node.now_ms();
    let producer_ids = &request.producer_id_filters;
    let transaction_states = node.transactions.list(|transactional_id, transaction| {
        let age_ms = now_ms.saturating_sub(transaction.start_ms);
        let selected = (any_state || states.contains(&transaction.state))
            && (producer_ids.is_empty() || producer_ids.contains(&transaction.producer_id))
            && (request.duration_filter < 0 || age_ms > request.duration_filter)
            && pattern
                .as_ref()
                .is_none_or(|pattern| pattern.matches(transactional_id));
        selected.then(|| TransactionState {
            transactional_id: transactional_id.to_owned(),
            producer_id: transaction.producer_id,
            transaction_state: transaction.state.name().to_owned(),
        })
    });
    ListTransactionsResponse {
        unknown_state_filters: unknown,
        transaction_states,
        ..Default::default()
    }
}

/// Literal pieces with anything between them.
struct Pattern<'a>(Vec<&'a str>);

impl<'a> Pattern<'a> {
    fn parse(pattern: &'a str) -> Option<Pattern<'a>> {
        let pieces: Vec<&str> = pattern.split(".*").collect();
        let literal = |piece: &&str| {
            piece
                .chars()
                .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ' | ':' | '/'))
        };
        pieces.iter().all(literal).then_some(Pattern(pieces))
    }

    fn matches(&self, text: &str) -> bool {
        let [first, rest @ ..] = &self.0[..] else {
            return text.is_empty();
        };
        let Some(mut text) = text.strip_prefix(first) else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else {
            return text.is_empty();
        };
        for piece in middle {
            let Some(found) = text.find(piece) else {
                return false;
            };
            text = text.get(found + piece.len()..).unwrap_or_default();
        }
        text.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn patterns_match_the_whole_id() {
        for (pattern, id, matches) in [
            ("orders-1", "orders-1", true),
            ("orders", "orders-1", false),
            ("orders.*", "orders-1", true),
            (".*-1", "orders-1", true),
            (".*-1", "orders-12", false),
            ("o.*r.*1", "orders-1", true),
            ("o.*x.*1", "orders-1", false),
            ("aa.*aa", "aaa", false),
            (".*", "", true),
        ] {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(id), matches, "{pattern} on {id}");
        }
        for pattern in ["[ab]", "a+", "(a|b).*", "a."] {
            assert!(Pattern::parse(pattern).is_none(), "{pattern}");
        }
    }
}
