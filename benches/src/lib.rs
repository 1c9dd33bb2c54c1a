//! What the benches share: workloads and process accounting.
