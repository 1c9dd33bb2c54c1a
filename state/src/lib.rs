//! State stores for streams: ordered byte stores whose writes become visible with the commit.
