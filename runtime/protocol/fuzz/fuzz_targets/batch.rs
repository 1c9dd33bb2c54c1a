//! Record batches from any bytes: an error or a value, never a panic.
//!
//! Invariants: memory is bounded by the input's size.
//! Never: in the workspace. In `runtime/protocol`: `RUSTC_BOOTSTRAP=1 cargo fuzz run batch`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "each target uses a part")]
#[path = "../../tests/wire/any.rs"]
mod any;
#[path = "../../tests/replay/bound.rs"]
mod bound;

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

fuzz_target!(|input: &[u8]| {
    bound::BATCHES.hold(&MEMORY, input, |input| {
        any::try_batches(input);
    });
});
