//! What is asked for with `tensorfs remote`, one file a command.

mod beside;
mod bring;
mod carry;
mod catching_up;
mod cli;
mod evict;
mod get;
mod list;
mod mount;
mod outside;
mod place;
mod restore;
mod set;
mod show;
mod status;
mod tidy;
mod wait;
mod watched;
mod when;

pub use cli::Cli;

use crate::commands::cli::{Command, Progress};
use crate::error::Result;

/// Text on one line that cannot play with the terminal: a store or a pool's owner may have named what is in it.
pub fn one_line(text: &str) -> String {
    show::plain(&text.replace(['\n', '\0'], " "))
}

/// Does what was asked for. False if that found something wrong.
pub fn run(mut asked: Cli) -> Result<bool> {
    if let Some(pool) = asked.command.pool() {
        *pool = mount::pool_of(pool);
    }
    show::progress_by(match asked.progress {
        Progress::Auto => show::By::Bar,
        Progress::Json => show::By::Lines,
        Progress::None => show::By::Nothing,
    });
    let done = match asked.command {
        Command::Set(arguments) => set::set(arguments).map(|()| true),
        Command::Key(arguments) => set::key(&arguments).map(|()| true),
        Command::Off(arguments) => set::off(&arguments).map(|()| true),
        Command::Status(arguments) => status::run(&arguments),
        Command::Carry(arguments) => carry::run(&arguments).map(|()| true),
        Command::Wait(arguments) => wait::run(&arguments).map(|()| true),
        Command::List(arguments) => list::run(&arguments).map(|()| true),
        Command::Get(arguments) => get::run(&arguments),
        Command::Check(arguments) => tidy::check(&arguments),
        Command::Gc(arguments) => tidy::gc(&arguments).map(|()| true),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Bring(arguments) => bring::run(&arguments).map(|()| true),
        Command::Evict(arguments) => evict::run(&arguments).map(|()| true),
        Command::Outside(arguments) => outside::run(&arguments).map(|()| true),
        Command::Manual(arguments) => beside::manual(&arguments).map(|()| true),
        Command::Completions(arguments) => beside::completions(&arguments).map(|()| true),
    };
    done.and_then(|right| show::printed().map(|()| right))
}
