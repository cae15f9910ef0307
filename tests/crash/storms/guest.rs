//! QEMU guests: what `tests/crash/vm/prepare` made is booted, and does what a script says.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tensorfs_tests::{program, scratch, tensorfs};

/// What is booted, or why nothing can be.
pub fn prepared() -> Result<PathBuf, String> {
    let directory = match std::env::var_os("TENSORFS_VM") {
        Some(path) => PathBuf::from(path),
        None => {
            let mut path = std::env::current_exe().unwrap();
            path.pop();
            path.join("../../vm")
        }
    };
    let qemu = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    if !qemu.is_ok_and(|status| status.success()) {
        return Err("no qemu-system-x86_64: run tests/crash/vm/prepare".to_owned());
    }
    match directory.join("initramfs.gz").exists() && directory.join("vmlinuz").exists() {
        true => Ok(directory),
        false => Err("no kernel for a guest: run tests/crash/vm/prepare".to_owned()),
    }
}

/// A guest: what it boots, and a directory that it shares with the host.
pub struct Guest {
    prepared: PathBuf,
    base: tempfile::TempDir,
    devices: Vec<String>,
}

impl Guest {
    /// One that knows `tensorfs`, the storms' writer, and what the script `do` says.
    pub fn new(prepared: PathBuf, script: &str) -> Guest {
        let guest = Guest { prepared, base: scratch(), devices: Vec::new() };
        let share = guest.share();
        std::fs::create_dir_all(share.join("bin")).unwrap();
        std::fs::create_dir(share.join("ledgers")).unwrap();
        for (name, from) in [("tensorfs", tensorfs()), ("tensorfs-test-storm", program("tensorfs-test-storm"))] {
            let to = share.join("bin").join(name);
            std::fs::copy(from.get_program(), &to).unwrap();
            // The guest reads it through the share, and has no use for what a debugger needs.
            let _ = Command::new("strip").arg(&to).stderr(Stdio::null()).status();
        }
        std::fs::write(share.join("do"), script).unwrap();
        guest
    }

    pub fn path(&self) -> &Path {
        self.base.path()
    }

    pub fn share(&self) -> PathBuf {
        self.path().join("share")
    }

    /// A part of the shared directory, empty if it is not there.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.share().join(name)).unwrap_or_default()
    }

    /// What the guest printed in its last life.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(self.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    pub fn boot(&self) -> Qemu {
        let console = File::create(self.path().join("console")).unwrap();
        let kernel = |name: &str| self.prepared.join(name);
        // One processor: with more the emulator does not keep up with a kernel that changes its own code, or loses its
        // timers.
        let process = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-machine", "q35,nvdimm=on", "-cpu", "max", "-smp", "1"])
            .args(["-m", "1G,slots=2,maxmem=4G", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"])
            .arg("-kernel")
            .arg(kernel("vmlinuz"))
            .arg("-initrd")
            .arg(kernel("initramfs.gz"))
            .args(["-append", "console=ttyS0 quiet no_timer_check oops=panic panic=-1"])
            .arg("-virtfs")
            .arg(format!("local,path={},mount_tag=share,security_model=none", self.share().display()))
            .args(&self.devices)
            .stdin(Stdio::null())
            .stderr(console.try_clone().unwrap())
            .stdout(console)
            .spawn()
            .expect("start qemu-system-x86_64");
        Qemu(process)
    }
}

/// A guest that runs; it is killed when it goes out of scope.
pub struct Qemu(std::process::Child);

impl Qemu {
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    pub fn wait(mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Does nothing to one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parts of the guest's scripts that are always the same.
pub const BEGIN: &str = r#"
exec 2>&1
cp /share/bin/* /bin/
modprobe crc32c_generic
modprobe ext4
"#;

pub const MEMORY: &str = r#"
modprobe nfit
modprobe nd_pmem
until [ -b /dev/pmem0 ] || [ ! -e /share/made ]; do sleep 0.1; done
if [ ! -e /share/made ]; then
    ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem >/dev/null || exit 1
    until [ -b /dev/pmem0 ]; do sleep 0.1; done
    mkfs.ext4 -F -q -b 4096 /dev/pmem0 || exit 1
fi
mount -t ext4 -o dax=always /dev/pmem0 /pool || exit 1
"#;

impl Guest {
    /// With persistent memory, which survives the guest: what it stores is in the host's file at once.
    pub fn with_memory(mut self) -> Guest {
        // What the labels need on top of a multiple of 16 MiB.
        const SIZE: u64 = (192 + 2) << 20;
        let path = self.path().join("memory");
        File::create_new(&path).unwrap().set_len(SIZE).unwrap();
        let memory = format!("memory-backend-file,id=memory,share=on,mem-path={},size={SIZE}", path.display());
        let module = "nvdimm,memdev=memory,id=nvdimm,label-size=2M";
        self.devices.extend(["-object", &memory, "-device", module].map(str::to_owned));
        self
    }

    /// With a block device.
    pub fn with_disk(mut self, path: &Path) -> Guest {
        let disk = format!("if=virtio,format=raw,cache=writeback,file={}", path.display());
        self.devices.extend(["-drive".to_owned(), disk]);
        self
    }
}
