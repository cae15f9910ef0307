//! Recovery: from whatever stands in the pool's directory to a tree that is as it was after some prefix of the
//! operations.
//!
//! [`reading::read`] decides which transactions are kept and builds the view from them:
//!
//! * the pool was closed, or its server was killed while the machine stayed up (same boot): all complete frames;
//! * power was lost (another boot): the frames up to the newest horizon whose frames are all there.
//!
//! Anything missing in front of that is damage: the pool is then opened read-only and nothing in it is changed.
//! [`settling::settle`] then brings the segments and the records to agree. Programs may outlive a killed server and go
//! on writing: what is learned of a segment is its last word only if it was asked behind the proof that nothing can
//! write it. Without that proof the file is served as one that is being written. Everything it does may be interrupted
//! and done again: the superblock still says what it said before, until the caller writes it as the last step (rule 8).

mod file;
mod look;
pub(crate) mod reading;
pub(crate) mod settling;
mod store;
mod tiers;
mod unowned;
