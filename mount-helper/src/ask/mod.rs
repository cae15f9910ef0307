//! What is asked of the server of a mount, and of the pool itself where there is no server.

pub mod about;
pub mod job;
pub mod question;
pub mod sealing;
