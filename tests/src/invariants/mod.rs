//! What is judged after a series, one file each.
//!
//! Invariants: a check names what it found with partition and offset.
//! Never: stops at the first finding.

mod acknowledged_once;
mod dead_letters_unchanged;
mod enriched_matches_audit;
mod every_order_once;
mod offsets_at_the_ends;
mod order_is_kept;

use crate::feeder::Fed;
use crate::oracle::Snapshot;

/// Findings of one kind that are listed; the rest is counted.
const LISTED: usize = 8;

/// Runs every check; an error lists what was found.
///
/// # Errors
/// Where anything was found.
pub fn check(snapshot: &Snapshot, fed: &Fed) -> anyhow::Result<()> {
    let checks: [(&str, Vec<String>); 6] = [
        (
            "every order once in audit or dead letters",
            every_order_once::check(snapshot),
        ),
        (
            "enriched matches audit",
            enriched_matches_audit::check(snapshot),
        ),
        (
            "dead letters are unchanged",
            dead_letters_unchanged::check(snapshot),
        ),
        (
            "committed offsets are at the ends",
            offsets_at_the_ends::check(snapshot),
        ),
        (
            "acknowledged records are there once",
            acknowledged_once::check(snapshot, fed),
        ),
        ("order is kept", order_is_kept::check(snapshot)),
    ];
    let mut text = String::new();
    for (what, found) in checks.iter().filter(|(_, found)| !found.is_empty()) {
        text.push_str(&format!("\n{what}: {} findings", found.len()));
        for finding in found.iter().take(LISTED) {
            text.push_str(&format!("\n  {finding}"));
        }
    }
    if text.is_empty() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("{text}"))
    }
}
