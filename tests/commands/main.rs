//! The program `tensorfs` from outside: every command, what it prints, and how it ends.

mod cli;
mod metrics;
mod resize;
mod tensors;
mod verify;
