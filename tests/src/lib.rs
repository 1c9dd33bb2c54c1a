//! Millstream's test harness and suites through public interfaces.
