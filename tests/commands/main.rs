//! The program `tensorfs` from outside: every command, what it prints, and how it ends.

mod alerts;
mod behind;
mod cli;
mod databases;
mod healing;
mod mend;
mod metrics;
mod quota;
mod requests;
mod resize;
mod tensors;
mod verify;
