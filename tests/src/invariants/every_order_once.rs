//! Every (partition, offset) of `orders` that holds a record is exactly once in `orders.audit` or
//! `orders.dead-letter`: in the one where its content belongs.
//!
//! Invariants: an audit record names its source in its value, a dead letter in its headers.
//! Never: looks at an order's own id, which a producer may repeat.

use std::collections::BTreeMap;

use examples::model::Audit;

use crate::oracle::{Snapshot, header};

type Source = (i32, i64);

pub(super) fn check(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let mut audited: BTreeMap<Source, Vec<Audit>> = BTreeMap::new();
    for record in &snapshot.audit {
        let value = record.value.as_deref().unwrap_or_default();
        match serde_json::from_slice::<Audit>(value) {
            Ok(audit) => {
                let source = (audit.source_partition, audit.source_offset);
                audited.entry(source).or_default().push(audit);
            }
            Err(error) => found.push(format!("audit {record:?}: {error}")),
        }
    }
    let mut dead: BTreeMap<Source, u64> = BTreeMap::new();
    for record in &snapshot.dead_letters {
        let number = |name: &str| header(record, name).and_then(|text| text.parse::<i64>().ok());
        let (partition, offset) = (
            number("__streams.errors.partition"),
            number("__streams.errors.offset"),
        );
        match (partition.and_then(|p| i32::try_from(p).ok()), offset) {
            (Some(partition), Some(offset)) => *dead.entry((partition, offset)).or_default() += 1,
            _ => found.push(format!("dead letter without its source: {record:?}")),
        }
    }
    for record in &snapshot.orders {
        let source = (record.partition, record.offset);
        let audits = audited.remove(&source).unwrap_or_default();
        let letters = dead.remove(&source).unwrap_or(0);
        let expected = snapshot.expected(record);
        let sound = expected.is_some();
        if (audits.len() as u64, letters) != (u64::from(sound), u64::from(!sound)) {
            found.push(format!(
                "orders-{} offset {} ({}): {} times in audit, {letters} times in dead-letter",
                source.0,
                source.1,
                if sound { "sound" } else { "malformed" },
                audits.len(),
            ));
        } else if let Some((_, audit)) = expected
            && audits.first() != Some(&audit)
        {
            found.push(format!("audit of {source:?} is {audits:?}, not {audit:?}"));
        }
    }
    found.extend(
        audited
            .keys()
            .map(|source| format!("audit of {source:?}, where no order is")),
    );
    found.extend(
        dead.keys()
            .map(|source| format!("dead letter of {source:?}, where no order is")),
    );
    found
}
