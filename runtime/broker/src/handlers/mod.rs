//! One file an API: request in, response out, on a `Node`.
//!
//! Invariants: errors are per topic and partition wherever the protocol has a place for them.
//! Never: touches a connection, except through its `RequestContext`.

pub(crate) mod api_versions;
pub(crate) mod create_topics;
pub(crate) mod delete_topics;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod fetch;
pub(crate) mod list_offsets;
pub(crate) mod metadata;
pub(crate) mod produce;
