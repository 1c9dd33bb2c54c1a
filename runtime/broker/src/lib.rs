//! Requests to partitions and coordinators: the single-node broker.
