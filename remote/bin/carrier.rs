//! The program `tensorfs-carrier`, which does what `tensorfs remote` is asked for: the one with tokio and TLS in it, so
//! that the program which serves mounts has neither.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use log::{Level, LevelFilter, Record};
use tensorfs_remote::commands::{self, Cli};

/// Of a certificate that is not trusted its verifier tells at each try; the error says it once.
fn is_said_again(record: &Record<'_>) -> bool {
    record.level() == Level::Error && record.target().starts_with("rustls_platform_verifier")
}

fn main() -> ExitCode {
    let mut log = env_logger::Builder::new();
    log.filter_level(LevelFilter::Warn).filter_module("object_store", LevelFilter::Error);
    log.format(|out, record| {
        if is_said_again(record) {
            return Ok(());
        }
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
