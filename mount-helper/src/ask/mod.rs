//! What is asked of the server of a mount, and of the pool itself where there is no server.

pub mod about;
pub mod carrier;
pub mod evicting;
pub mod giving;
pub mod job;
pub mod mending;
pub mod question;
pub mod requests;
pub mod sealing;
