//! Outputs of one source partition lie in the order of their source offsets, in each partition that
//! they went to.
//!
//! Invariants: judged on `orders.audit`, whose values name their source.
//! Never: compares over partitions; there is no order between them.

use std::collections::BTreeMap;

use examples::model::Audit;

use crate::oracle::Snapshot;

pub(super) fn check(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let mut last: BTreeMap<(i32, i32), i64> = BTreeMap::new();
    for record in &snapshot.audit {
        let value = record.value.as_deref().unwrap_or_default();
        let Ok(audit) = serde_json::from_slice::<Audit>(value) else {
            continue;
        };
        let way = (audit.source_partition, record.partition);
        let before = last.insert(way, audit.source_offset);
        if before.is_some_and(|before| before >= audit.source_offset) {
            found.push(format!(
                "audit {}/{} has the source offset {} of partition {} after {before:?}",
                record.partition, record.offset, audit.source_offset, audit.source_partition,
            ));
        }
    }
    found
}
