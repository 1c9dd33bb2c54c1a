//! Membership in a group.
mod machine;
