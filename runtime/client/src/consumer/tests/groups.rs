//! Groups: to come.
