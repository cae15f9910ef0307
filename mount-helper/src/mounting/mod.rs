//! What mounts a pool, serves it in a process of its own, and unmounts it.

mod adoption;
pub mod alarm;
pub mod background;
pub mod busy;
pub mod elsewhere;
pub mod errands;
pub mod exchange;
mod fuse_device;
mod fusermount;
pub mod given;
pub mod holder;
pub mod keeper;
pub mod kept;
pub mod mountinfo;
mod notify;
pub mod options;
pub mod paths;
pub mod pool;
pub mod process;
pub mod remount;
pub mod request;
pub mod server;
pub mod signals;
pub mod target;
pub mod touching;
pub mod unmount;
mod watchdog;
