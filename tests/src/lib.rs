//! The harness of the suites: clusters, faults, workloads and the oracle.
