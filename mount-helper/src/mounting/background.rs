//! The server as a process of its own: started, watched until it serves, then left alone.
//!
//! This program executes itself again with a pipe as standard output. The server writes lines to it: `note TEXT` any
//! number of times, then `ready` or `error TEXT`. The one who waits prints them, and exits accordingly.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::statfs;
use nix::unistd::{dup2_stdout, setsid};

use crate::mounting::keeper;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::mounting::server::{self, Listener};
use crate::mounting::unmount;
use crate::show::failure::{At, Failure, reason};
use crate::show::{logging, output};

/// Starts a server, and returns when it serves.
pub fn start(request: &MountRequest) -> Result<(), Failure> {
    let before = top(request);
    let (reader, writer) = io::pipe().map_err(cannot_start)?;
    let mut child = spawn(request, writer).map_err(cannot_start)?;
    match wait(reader)? {
        Answer::Ready => match statfs(&request.mountpoint) {
            Err(Errno::ENOTCONN | Errno::ECONNABORTED) => Err(died(request, before, &mut child)),
            result => result.map(drop).at(&request.mountpoint),
        },
        Answer::Error(line) => {
            // It ends by itself; without this, a unit's manager would see a process that nobody waited for.
            let _ = child.wait();
            clean_up(request, before);
            Err(Failure::new(line))
        }
        Answer::Silence => Err(died(request, before, &mut child)),
    }
}

/// A server that was killed, or ran into its limits. Nothing of its mount is left behind.
fn died(request: &MountRequest, before: Option<Mount>, child: &mut Child) -> Failure {
    let how = child.wait().map_or_else(|error| reason(&error), |status| status.to_string());
    clean_up(request, before);
    Failure::at(&request.pool, format!("the server ended during its start ({how}); its log may say why"))
}

/// What is seen at the mount point.
fn top(request: &MountRequest) -> Option<Mount> {
    Table::read().ok()?.top_at(&request.mountpoint).cloned()
}

/// Takes away what is left of a mount whose server has died. What was there `before` stays: programs get errors there,
/// and would write beside the pool without it.
fn clean_up(request: &MountRequest, before: Option<Mount>) {
    let ours = |mount: &Mount| mount.is_tensorfs() && mount.source() == request.pool && mount.is_dead();
    if top(request).is_some_and(|top| ours(&top) && Some(&top) != before.as_ref()) {
        // Fails only if somebody else was faster.
        let _ = unmount::unmount(&request.mountpoint, true);
    }
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(format!("cannot start a server: {}", reason(&error)))
}

/// The command, and with it our copy of the pipe's end, is gone when this returns.
fn spawn(request: &MountRequest, writer: PipeWriter) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0(PROGRAM)
        .args(request.server_arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::from(writer))
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
}

enum Answer {
    Ready,
    Error(String),
    Silence,
}

fn wait(reader: PipeReader) -> Result<Answer, Failure> {
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(cannot_start)?;
        let line = String::from_utf8_lossy(&line);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("note", text) => output::complain(text),
            ("ready", _) => return Ok(Answer::Ready),
            ("error", text) => return Ok(Answer::Error(text.to_owned())),
            _ => {}
        }
    }
    Ok(Answer::Silence)
}

/// The server's side: serves the mount, and answers on standard output until it is ready.
pub fn serve(request: &MountRequest) -> Result<(), Failure> {
    if request.is_to_be_kept() {
        let kept = prepare(request).and_then(|_| keeper::keep(request, true, None));
        if let Err(failure) = &kept {
            log::error!("{failure}");
            // Until a server serves, standard output is the pipe.
            let _ = writeln!(io::stdout(), "error {}", failure.to_string().replace('\n', " "));
        }
        return kept;
    }
    let mut pipe = Pipe::take()?;
    let result = prepare(request).and_then(|unheard| {
        pipe.unheard = unheard;
        server::serve(request, &mut pipe)
    });
    if let Err(failure) = &result {
        log::error!("{failure}");
        // Once it has been ready, nobody listens any more: the log is the place.
        let _ = pipe.say("error", &failure.to_string());
    }
    result
}

/// Returns why what is logged gets nowhere, if so.
fn prepare(request: &MountRequest) -> Result<Option<String>, Failure> {
    // A session without a terminal: no signal from a shell's job control or a hangup reaches it.
    setsid().map_err(|errno| Failure::new(format!("cannot start a session: {}", errno.desc())))?;
    let unheard = match &request.options.log {
        Some(path) => logging::to_file(path).map(|()| None)?,
        None => logging::to_syslog(),
    };
    umask(Mode::from_bits_truncate(0o077));
    // `ps` and `pgrep` would show "exe", after the link it was executed through.
    let _ = prctl::set_name(c"tensorfs");
    Ok(unheard)
}

/// The pipe to the process that waits.
struct Pipe {
    to: Option<PipeWriter>,
    /// Why what is logged gets nowhere, if so.
    unheard: Option<String>,
}

impl Pipe {
    /// Takes over standard output and leaves `/dev/null` in its place, so that the pipe closes when we close it.
    fn take() -> Result<Pipe, Failure> {
        let null = OpenOptions::new().write(true).open("/dev/null");
        let (pipe, null) = nix::unistd::dup(io::stdout())
            .map_err(io::Error::from)
            .and_then(|pipe| Ok((pipe, null?)))
            .map_err(cannot_start)?;
        dup2_stdout(null).map_err(|errno| cannot_start(errno.into()))?;
        Ok(Pipe { to: Some(PipeWriter::from(pipe)), unheard: None })
    }

    fn say(&mut self, what: &str, text: &str) -> io::Result<()> {
        match &mut self.to {
            Some(pipe) => pipe.write_all(format!("{what} {}\n", text.replace('\n', " ")).as_bytes()),
            None => Ok(()),
        }
    }
}

impl Listener for Pipe {
    fn note(&mut self, line: &str) {
        // `ready` will find out if nobody listens.
        let _ = self.say("note", line);
    }

    fn ready(&mut self) -> Result<(), Failure> {
        if let Some(why) = self.unheard.take() {
            self.note(&format!("there is no syslog, so that nothing is logged ({why}); say where with --log FILE"));
        }
        let said = self.say("ready", "");
        self.to = None;
        said.map_err(|_| Failure::new("whoever asked for this mount has gone; unmounting it"))
    }
}
