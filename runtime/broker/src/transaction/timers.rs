//! What happens to transactions because time passes: timeouts, forgotten ids, markers again.
//!
//! Invariants: a clock that jumps aborts nothing; the node's clock only counts what has elapsed.
//! Never: keeps the node alive.

use std::sync::Weak;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::machine::Event;
use crate::node::{Node, Stage};

impl Coordinator {
    /// Aborts transactions that have timed out, writes markers that are missing and forgets old
    /// ids, until the node is gone.
    pub(crate) async fn run_timers(node: Weak<Node>) {
        let Some(strong) = node.upgrade() else { return };
        let scan = millis(strong.config.transaction_abort_timed_out_scan_ms);
        let expiry_scan_ms = strong.config.transaction_remove_expired_scan_ms;
        let mut next_expiry_ms = strong.now_ms().saturating_add(expiry_scan_ms);
        let mut leaps = strong.leaps();
        drop(strong);
        loop {
            tokio::time::sleep(scan).await;
            let Some(node) = node.upgrade() else { return };
            if node.stage() >= Stage::Stopped {
                return;
            }
            node.transactions.end_timed_out(&node);
            for transactional_id in node.transactions.take_unfinished() {
                node.transactions.finish_prepared(&node, &transactional_id);
            }
            if leaps.any() {
                // Whose ids have slept with the machine may use them again first.
                next_expiry_ms = node.now_ms().saturating_add(expiry_scan_ms);
            }
            if node.now_ms() >= next_expiry_ms {
                next_expiry_ms = node.now_ms().saturating_add(expiry_scan_ms);
                node.transactions.forget_expired(&node);
            }
        }
    }

    fn end_timed_out(&self, node: &Node) {
        let now_ms = node.now_ms();
        for transactional_id in self.timed_out(now_ms) {
            let answer = self
                .handle(node, &transactional_id, Event::TimedOut { now_ms })
                .answer
                .error;
            tracing::info!(%transactional_id, %answer, "transaction timed out");
        }
    }

    fn forget_expired(&self, node: &Node) {
        let idle_ms = node.config.transactional_id_expiration_ms;
        for slot in self.all_slots() {
            let mut held = slot.lock();
            if held.left {
                continue;
            }
            if held.machine.is_none() {
                self.leave(&slot, &mut held);
            } else if let Err(error) = self.step(&slot, &mut held, Event::Expire { idle_ms }) {
                let transactional_id = &slot.transactional_id;
                tracing::warn!(%transactional_id, %error, "an expired id cannot be forgotten");
            }
        }
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.max(1).unsigned_abs())
}
