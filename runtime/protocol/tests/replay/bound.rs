//! How much memory an input may take while it is decoded, written and decoded again.
//!
//! Invariants: the most that was allocated at one time is at most `times * input + plus`.
//! Never: counts what C libraries allocate; zstd's window is bounded by the cap of its caller.

use peak_alloc::PeakAlloc;

/// A bound that is linear in the input.
pub(crate) struct Bound {
    times: usize,
    plus: usize,
}

/// An array's element takes up to 64 times its bytes on the wire; a message is held twice, beside
/// its bytes.
#[allow(dead_code, reason = "each binary uses a part")]
pub(crate) const MESSAGE: Bound = Bound {
    times: 200,
    plus: 64 << 10,
};

/// The records decompress to at most 1 MiB. Three of these are held at a time, growth doubles a
/// buffer, and a codec has tables.
#[allow(dead_code, reason = "each binary uses a part")]
pub(crate) const BATCHES: Bound = Bound {
    times: 16,
    plus: 16 << 20,
};

impl Bound {
    /// Runs it and asserts the bound. Nothing else may allocate meanwhile.
    pub(crate) fn hold(&self, memory: &PeakAlloc, input: &[u8], run: impl FnOnce(&[u8])) {
        memory.reset_peak_usage();
        let before = memory.current_usage();
        run(input);
        let taken = memory.peak_usage().saturating_sub(before);
        let most = self.times * input.len() + self.plus;
        let size = input.len();
        assert!(taken <= most, "{taken} bytes for an input of {size}");
    }
}
