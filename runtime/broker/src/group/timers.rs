//! Time for groups: sessions, rebalances, and what has been kept for long enough.
//!
//! Invariants: a deadline that comes earlier than planned wakes the loop; nothing is forgotten in
//! the first interval, nor in the one after a sleep of the machine, so whoever comes back with
//! either finds its offsets.
//! Never: keeps the node alive; never works while it holds a lock across an await.

use std::sync::Weak;
use std::time::Duration;

use super::coordinator::Coordinator;
use crate::node::Node;

impl Coordinator {
    /// Session, rebalance and retention timeouts, until the node is gone.
    pub(crate) async fn run_timers(node: Weak<Node>) {
        let mut expire_at_ms = None;
        let Some(mut leaps) = node.upgrade().map(|node| node.leaps()) else {
            return;
        };
        loop {
            let (wake, sleep_ms) = {
                let Some(node) = node.upgrade() else { return };
                let now_ms = node.now_ms();
                let interval_ms = node.config.offsets_retention_check_interval_ms;
                let next_ms = now_ms.saturating_add(interval_ms);
                let expire_at_ms = expire_at_ms.get_or_insert(next_ms);
                if leaps.any() {
                    *expire_at_ms = next_ms;
                }
                if now_ms >= *expire_at_ms {
                    node.groups.expire(node.wall_ms());
                    *expire_at_ms = next_ms;
                }
                let next_ms = node.groups.tick(&node, now_ms).min(*expire_at_ms);
                (
                    node.groups.wake.clone(),
                    next_ms.saturating_sub(now_ms).max(1),
                )
            };
            let sleep = Duration::from_millis(u64::try_from(sleep_ms).unwrap_or(1));
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }
}
