//! The second copy of a pool, in an object store: the format of the repository, and what brings a pool there and back.
//!
//! docs/REMOTE.md has the repository byte by byte. tokio and TLS come with this crate and no other, and its program
//! `tensorfs-carrier` is a process of its own: what serves a mount is built with neither.
//!
//! # Rooms
//!
//! Each imports those behind it in this list.
//!
//! * [`commands`]: what is asked for on the command line;
//! * [`restore`], [`check`]: what is done with a repository;
//! * [`heal`]: damage of a mounted pool, mended with what a repository has;
//! * [`relief`]: which files leave by themselves;
//! * [`evict`]: files of a mount leave it, as a repository has them;
//! * [`fetching`]: what brings them back, started;
//! * [`bring`]: the files of a mount whose bytes are in one yet;
//! * [`origin`]: what a pool is made from: a repository, or several below one URL;
//! * [`carry`]: from a pool to its remote;
//! * [`union`]: the trees of several repositories as one;
//! * [`gc`]: removing from a repository what nobody needs;
//! * [`fetch`]: the bytes of a file in it;
//! * [`repository`]: batches, bases and objects, and the tree that they make;
//! * [`place`]: the object store: put, get, list, delete;
//! * [`crypt`]: what is put, encrypted;
//! * [`locked_in`]: what this process may do, and no more; [`outside`]: what others do for it.

pub mod bring;
pub mod carry;
pub mod check;
pub mod commands;
pub mod crypt;
mod error;
pub mod evict;
pub mod fetch;
pub mod fetching;
pub mod gc;
pub mod heal;
pub mod locked_in;
pub mod origin;
pub mod outside;
pub mod place;
pub mod relief;
pub mod repository;
pub mod restore;
pub mod union;

pub use error::{Error, Result};
