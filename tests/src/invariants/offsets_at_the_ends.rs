//! The group has committed the last stable offset of every partition of `orders`.
//!
//! Invariants: both are exclusive: the offset behind the last record that readers see.
//! Never: lets an offset beyond the end pass.

use crate::oracle::Snapshot;

pub(super) fn check(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    for (partition, &end) in &snapshot.ends {
        let committed = snapshot.committed.get(partition).copied();
        if committed.unwrap_or(0) != end {
            found.push(format!(
                "{partition}: committed {committed:?}, the end is {end}"
            ));
        }
    }
    for partition in snapshot.committed.keys() {
        if !snapshot.ends.contains_key(partition) {
            found.push(format!("{partition} is committed and does not exist"));
        }
    }
    found
}
