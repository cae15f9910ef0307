//! The program `tensorfs-carrier`, which does what `tensorfs remote` is asked for: the one with tokio and TLS in it, so
//! that the program which serves mounts has neither.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tensorfs_remote::commands::{self, Cli};

fn main() -> ExitCode {
    let mut log = env_logger::Builder::new();
    log.filter_level(log::LevelFilter::Warn).filter_module("object_store", log::LevelFilter::Error);
    log.format(|out, record| {
        let time = out.timestamp();
        writeln!(out, "[{time} {}] {}", record.level(), commands::one_line(&record.args().to_string()))
    });
    log.parse_default_env().init();
    match commands::run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tensorfs remote: {}", commands::one_line(&error.to_string()));
            ExitCode::from(error.status())
        }
    }
}
