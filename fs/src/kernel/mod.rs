//! The kernel's side: its requests come in here, are taken to a lane, and are answered. fuser's types stay in this
//! room.

mod adapter;
mod answer;
mod awake;
mod backlog;
mod begun;
mod connection;
mod convert;
mod crew;
mod filesystem;
mod handshake;
mod lanes;
mod latency;
mod linger;
mod listings;
mod realm;
mod recall;
mod server;

pub use handshake::could_take_over;
pub use server::{Server, ServerHandle};
