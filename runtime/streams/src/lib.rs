//! Typed topologies over the client: read, process, write and commit in one transaction.
