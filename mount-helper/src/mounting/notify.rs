//! Telling systemd, for units of `Type=notify`: the protocol of sd_notify(3).

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that says where it listens.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// Sends `state` (`READY=1`, `STOPPING=1`) to the service manager, if one asked for it.
pub fn notify(state: &str) {
    if let Some(socket) = std::env::var_os(SOCKET)
        && let Err(error) = send(&socket, state)
    {
        log::warn!("cannot notify the service manager: {error}");
    }
}

fn send(socket: &OsString, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let from = UnixDatagram::unbound()?;
    // A manager that does not listen is not waited for.
    from.set_nonblocking(true)?;
    from.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_one_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(&path.into_os_string(), "READY=1").unwrap();
        let mut buffer = [0; 32];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
    }
}
