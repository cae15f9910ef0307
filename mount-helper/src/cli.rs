//! Every command and every flag, as plain data that its command reads.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;
use tensorfs_formats::{Dtype, Mode};
use tensorfs_fs::{Durability, LatencyMode, PassthroughMode};

use crate::mounting::keeper::errands::Sockets;
use crate::mounting::kept::{Adopted, Descriptors};
use crate::mounting::options::{self, Carry};
use crate::show::{VERSION, size};
use crate::tensors::filter::{self, Steps};
use crate::tensors::glob::Glob;

const EXAMPLES: &str = "\
Examples:
  tensorfs mount --create /var/lib/tensors /mnt/tensors
  cp model.safetensors /mnt/tensors/
  tensorfs info /mnt/tensors
  tensorfs umount /mnt/tensors

Exit status: 0 done, 1 failed (one line says why), 2 wrong usage.";

/// A filesystem for tensors over a persistent memory pool
#[derive(Debug, Parser)]
#[command(name = "tensorfs", version = VERSION, after_help = EXAMPLES, max_term_width = 80)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Create(Create),
    Mount(Box<Mount>),
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    #[command(visible_alias = "status")]
    Info(Info),
    Health(Health),
    Metrics(Metrics),
    Alarm(Alarm),
    #[command(hide = true)]
    Carrying(Carrying),
    Top(Top),
    Trace(Trace),
    Upgrade(Upgrade),
    Sync(Sync),
    Restore(Restore),
    Check(Check),
    Scrub(Scrub),
    Resize(Resize),
    Tier(Tier),
    Quota(Quota),
    Ls(Ls),
    Latest(Latest),
    Rollback(Rollback),
    Remote(Remote),
    Records(Records),
    Verify(Verify),
    Seal(Seal),
    Tensors(Tensors),
    Cat(Cat),
    Stat(Stat),
    Diff(Diff),
    Completions(Completions),
    Manual(Manual),
}

/// Create a pool in a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs create /var/lib/tensors
  tensorfs create /mnt/pmem0/checkpoints --size 100G --layout run-42")]
pub struct Create {
    /// The pool's directory: new or empty, on fsdax, ext4, XFS or tmpfs
    pub pool: PathBuf,
    /// Most bytes the pool may take; none means all the host has
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// A name of your choice; `mount --layout` checks it
    #[arg(long, value_name = "NAME", value_parser = options::parse_layout)]
    pub layout: Option<String>,
    /// Destroy the pool that is there, after saying what it holds
    #[arg(long)]
    pub force: bool,
}

/// Keep a second copy of a pool in an object store, and make a pool from it
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  tensorfs remote set /var/lib/tensors s3://bucket/run-7
  tensorfs remote carry /var/lib/tensors --watch
  tensorfs remote wait /mnt/tensors/checkpoint-1000
  tensorfs remote restore s3://bucket/run-7 /var/lib/tensors

`tensorfs remote --help` lists its commands: set, key, off, status, carry, wait, list,
get, check, gc, restore. The program tensorfs-carrier does them."
)]
pub struct Remote {
    /// A command of `tensorfs remote`, and what belongs to it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub arguments: Vec<OsString>,
}

/// Print what a shell needs to complete commands and flags
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs completions bash > /usr/share/bash-completion/completions/tensorfs
  tensorfs completions zsh > /usr/share/zsh/vendor-completions/_tensorfs
  tensorfs completions fish > /usr/share/fish/vendor_completions.d/tensorfs.fish")]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

/// Write the manual pages, one a command, to a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs manual /usr/local/share/man/man8")]
pub struct Manual {
    /// The directory, which is made if it is not there
    pub directory: PathBuf,
}

/// Give a pool another size limit, mounted or not
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs resize /mnt/tensors 200G
  tensorfs resize /var/lib/tensors none

A limit below what is in use is refused.")]
pub struct Resize {
    /// A pool, or where one is mounted
    #[arg(value_name = "POOL|MOUNT")]
    pub target: PathBuf,
    /// Most bytes the pool may take, or `none`
    pub size: size::Limit,
}

/// Keep files in other directories than the pool's own, such as in memory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs tier add /var/lib/tensors dram /dev/shm/tensors
  echo '*.tmp dram' | tensorfs tier map /mnt/tensors -
  tensorfs tier move /mnt/tensors/run-7/optimizer.pt dram
  tensorfs tier list /mnt/tensors

The pool's own directory is the tier `pm`. What is on tmpfs is volatile: its files
are lost when the machine is started anew.")]
pub struct Tier {
    #[command(subcommand)]
    pub command: TierCommand,
}

#[derive(Debug, Subcommand)]
pub enum TierCommand {
    Add(TierAdd),
    Remove(TierRemove),
    List(TierList),
    Map(TierMap),
    Move(TierMove),
}

/// Add a directory to a pool that is not mounted
#[derive(Debug, Args)]
pub struct TierAdd {
    /// The pool's directory
    pub pool: PathBuf,
    /// What to call the tier: letters in lower case, digits, - and _
    pub name: String,
    /// Its directory: new or empty, on ext4, XFS or tmpfs
    pub directory: PathBuf,
}

/// Remove a tier that holds no file from a pool that is not mounted
#[derive(Debug, Args)]
pub struct TierRemove {
    /// The pool's directory
    pub pool: PathBuf,
    /// The tier
    pub name: String,
}

/// List the tiers of a pool, and what is in them
#[derive(Debug, Args)]
pub struct TierList {
    /// A pool, or where one is mounted
    #[arg(value_name = "POOL|MOUNT")]
    pub target: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the placement map, or replace it
#[derive(Debug, Args)]
#[command(after_help = "\
The map has lines of a glob and a tier; the first that fits a new file counts:

  # a glob without a slash fits the name of the file, in any directory
  *.tmp          dram
  # one with a slash fits its path from the mount's root; ** stands for directories
  /run-*/**      ssd

On a mount, it is also the file .tensorfs/placement.")]
pub struct TierMap {
    /// A pool, or where one is mounted
    #[arg(value_name = "POOL|MOUNT")]
    pub target: PathBuf,
    /// The new map; `-` is standard input
    pub file: Option<PathBuf>,
}

/// Move files to a tier, those that nothing has open
#[derive(Debug, Args)]
#[command(after_help = "\
The tier `remote` is the pool's second copy (`tensorfs remote`): files that it has, whole,
are there alone from then on, and come back when they are opened, or moved to `pm`.

Exit status: 0 all are there, 1 some are not, which are named with the reason.")]
pub struct TierMove {
    /// Files or directories on a mount; POOL:/path of a file
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// The tier
    #[arg(required = true)]
    pub tier: String,
    /// To the remote: read what it has of each file before
    #[arg(long)]
    pub check_data: bool,
    /// Print a line of JSON for each file
    #[arg(long)]
    pub json: bool,
}

/// Limit what may be below a directory of a mount, by the quotas of its host
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs quota set /mnt/tensors/alice 100G
  tensorfs quota /mnt/tensors
  tensorfs quota clear /mnt/tensors/alice

For root, and where the host has quotas of projects: ext4 made with
-O quota,project, or XFS, mounted with -o prjquota. At its quota, who writes below
the directory gets EDQUOT (on XFS ENOSPC).")]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Quota {
    #[command(subcommand)]
    pub command: Option<QuotaCommand>,
    /// As `quota show`
    #[arg(value_name = "MOUNT|DIR")]
    pub path: Option<PathBuf>,
    /// Print JSON
    #[arg(long, requires = "path")]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    Set(QuotaSet),
    Clear(QuotaClear),
    Show(QuotaShow),
}

/// Limit what is below a directory, now and from now on, or change the limit
#[derive(Debug, Args)]
#[command(after_help = "\
What is there already is counted first, file by file. If that is interrupted,
the limit is not set; the same command goes on.")]
pub struct QuotaSet {
    /// A directory of a mount
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Most bytes that may be below it
    #[arg(value_parser = size::parse)]
    pub size: u64,
}

/// Limit what is below a directory no more
#[derive(Debug, Args)]
pub struct QuotaClear {
    /// A directory that has a quota
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// List the quotas of a mount, or the one that a directory is under
#[derive(Debug, Args)]
pub struct QuotaShow {
    /// Where a pool is mounted, or a directory below
    #[arg(value_name = "MOUNT|DIR")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Mount a pool
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs mount /var/lib/tensors /mnt/tensors
  tensorfs mount --create --size 10G /var/lib/tensors /mnt/tensors
  tensorfs mount -f --durability close /mnt/pmem0/pool /mnt/tensors
  tensorfs mount --from s3://bucket/run-7 /var/lib/tensors /mnt/tensors

Returns as soon as the mount serves. The server logs to syslog, or to --log FILE;
with -f to the terminal.")]
pub struct Mount {
    /// The pool's directory
    pub pool: PathBuf,
    /// The directory the files appear in; or /dev/fd/N, a descriptor of
    /// /dev/fuse that somebody else has mounted
    pub mountpoint: PathBuf,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Create the pool and the mount point if they are not there
    #[arg(long)]
    pub create: bool,
    /// Refuse a pool with another layout name
    #[arg(long, value_name = "NAME", value_parser = options::parse_layout)]
    pub layout: Option<String>,
    #[command(flatten)]
    pub from: From,
    #[command(flatten)]
    pub server: ServerFlags,
    /// Mount options as in /etc/fstab: ro, noexec, noatime, allow_other, and the
    /// flags above (durability=, commit=, ...)
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Standard output is the pipe of the process that started this server
    #[arg(long, hide = true)]
    pub handshake: bool,
    /// Descriptors that the keeper hands to this server
    #[arg(long, hide = true, value_name = "NUMBERS")]
    pub kept: Option<Descriptors>,
    /// Descriptors by which this server has its keeper do what takes rights
    #[arg(long, hide = true, value_name = "NUMBERS")]
    pub errands: Option<Sockets>,
    /// Why this server takes the place of another one
    #[arg(long, hide = true, value_name = "REASON")]
    pub after: Option<String>,
    /// Descriptors that a server hands to its next keeper
    #[arg(long, hide = true, value_name = "NUMBERS")]
    pub adopted: Option<Adopted>,
    #[command(flatten)]
    pub instead: Instead,
}

// What `mount` does instead of mounting. (A comment for documentation would become that of `mount`.)
#[derive(Debug, Args)]
pub struct Instead {
    /// For ExecStop= of a unit: if systemd is about to start that unit again, leave
    /// the mount to what it starts; else do nothing, and the stop unmounts it
    #[arg(long, value_name = "UNIT")]
    pub restarting: Option<String>,
    /// Only say whether this program could serve the pool so
    #[arg(long, hide = true)]
    pub would_serve: bool,
}

// Where a new pool comes from: part of the flags of `mount`. (A comment for documentation would become that of
// `mount`.)
#[derive(Debug, Args)]
pub struct From {
    /// Make the pool, which is not there yet, from this remote, or from all that
    /// are directly below this URL: its tree is there at once, files come when
    /// they are opened, and in the background
    #[arg(long, value_name = "URL[#POOL][@WHEN]")]
    pub from: Option<String>,
    /// With --create or --from: most bytes a new pool may take
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// With --from: where an S3 store is that is not Amazon's
    #[arg(long, value_name = "URL", requires = "from")]
    pub endpoint: Option<String>,
    /// With --from: the store's region
    #[arg(long, requires = "from")]
    pub region: Option<String>,
    /// With --from: the remote is encrypted with the key in this file
    #[arg(long, value_name = "FILE", requires = "from")]
    pub key_file: Option<PathBuf>,
    /// With --from: it is the encrypted remote of this ID
    #[arg(long, value_name = "ID", requires = "from")]
    pub id: Option<String>,
    /// With --from: as it was after this batch, or at this time, such as
    /// 2026-11-27T10:00 (local, or with Z or +01:00 behind it)
    #[arg(long, value_name = "BATCH|TIME", requires = "from")]
    pub at: Option<String>,
}

// How the server works: part of the flags of `mount`. (A comment for documentation would become that of `mount`.)
#[derive(Debug, Args)]
pub struct ServerFlags {
    /// What is durable when: write, close or fsync returns [default: close on
    /// dax, else fsync]
    #[arg(long, value_name = "WHEN", value_parser = options::parse_durability)]
    pub durability: Option<Durability>,
    /// Make everything durable at least this often [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub commit: Option<Duration>,
    /// Let the kernel move the bytes: auto, on (refuse to mount without) or off
    /// [default: auto]
    #[arg(long, value_name = "MODE", value_parser = options::parse_passthrough)]
    pub passthrough: Option<PassthroughMode>,
    /// Keep processors from sleeping deeply while requests arrive: auto (where
    /// root may) or off [default: auto]
    #[arg(long, value_name = "MODE", value_parser = options::parse_latency)]
    pub latency: Option<LatencyMode>,
    /// Threads that answer the kernel [default: 4]
    #[arg(long, value_name = "N", value_parser = options::parse_threads)]
    pub threads: Option<usize>,
    /// From so full on, files leave for the pool's remote, if it is carried:
    /// those first that nobody has used for longest
    #[arg(long, value_name = "PERCENT", value_parser = options::parse_percent)]
    pub evict_at: Option<u8>,
    /// Mount it so that nothing can be changed, as -o ro
    #[arg(long)]
    pub read_only: bool,
    /// With --read-only: go on to newer trees of the remote that the pool is made
    /// from (--from), or was, while it is mounted; look for one so often
    /// [default: 10]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "10", value_parser = options::parse_seconds)]
    pub follow: Option<Duration>,
    /// Carry the pool to its remote while it is mounted, with the credentials of this
    /// environment; with DAYS, remove there once a day what trees of the last DAYS
    /// days do not need
    #[arg(long, value_name = "DAYS", num_args = 0..=1, require_equals = true, value_parser = Carry::parse)]
    pub carry: Option<Option<Carry>>,
    /// Log to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Check a pool, mounted or not, and repair it if asked to
#[derive(Debug, Args)]
#[command(after_help = "\
Without --repair nothing is changed. A repair throws nothing away: what does not
fit goes to the pool's quarantine, with a note. A pool that is in use is checked
by its server, which goes on serving; it cannot be repaired meanwhile.

Exit status: 0 whole, 1 repaired, 4 faults are left, 8 could not be checked.")]
pub struct Check {
    /// The pool's directory, or where it is mounted
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub pool: PathBuf,
    /// Read the bytes of files too, and compare their checksums
    #[arg(long)]
    pub data: bool,
    /// Put right what can be put right
    #[arg(long)]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Read all sealed files of a mount again, and compare their checksums
#[derive(Debug, Args)]
#[command(after_help = "\
The server reads, at a pace, with lowest priority; no program waits for it. What
it finds damaged is logged, and shown by ls and info until it is written again or
mended.

Exit status: 0 whole, or mended; 1 failed; 4 something is damaged; 130 interrupted.")]
pub struct Scrub {
    /// A mount point, or a mounted pool
    #[arg(value_name = "MOUNTPOINT|POOL")]
    pub target: PathBuf,
    /// Read so many bytes in a second at most
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "100M")]
    pub rate: u64,
    /// Read as fast as it goes
    #[arg(long, conflicts_with = "rate")]
    pub no_limit: bool,
    /// Go on where the last scrub was interrupted, if it was
    #[arg(long)]
    pub resume: bool,
    /// Mend what is found damaged with the pool's second copy (tensorfs remote)
    #[arg(long)]
    pub mend: bool,
    /// Read nothing, and list in JSON what can be mended of what is known to be damaged
    #[arg(long, hide = true)]
    pub known: bool,
    /// Print JSON, as check does
    #[arg(long)]
    pub json: bool,
}

/// List files: how far each has come, and how many tensors it holds
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs ls /mnt/tensors/run-7
  tensorfs ls -lR /var/lib/tensors              a pool that is not mounted
  tensorfs ls /var/lib/tensors:/run-7 --json    a directory in it

States: open (something can write it, or it is not durable yet), committed
(durable), sealed (durable, with checksums), damaged (bytes are known to be lost),
interrupted (a process was killed while it had it open to write, what one stored through
a mapping found no room, or it ends before what it promises itself: a save that was cut
short), lost (its tier was volatile), missing (its tier is not there).")]
pub struct Ls {
    /// Files or directories on a mount; pools; POOL:/path
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Say more: format, time of the last change
    #[arg(short, long)]
    pub long: bool,
    /// List only what is a checkpoint that is all there
    #[arg(long)]
    pub complete: bool,
    /// List all files below directories
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print JSON, a line for each file
    #[arg(long)]
    pub json: bool,
}

/// Print the newest complete checkpoint: what a run that goes on should load
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  torchrun train.py --resume $(tensorfs latest /mnt/tensors/run-7)
  tensorfs latest --json /mnt/tensors/run-7

A checkpoint is a file (.pt, .pth, .ckpt, .safetensors, .npz), or a directory:
of a trainer (checkpoint-N), of shards with their index, or of a distributed
checkpoint (.metadata and .distcp). It is complete when all that belongs to it
is there and whole.

Exit status: 0 there is one, 1 there is none.")]
pub struct Latest {
    /// A directory on a mount
    pub dir: PathBuf,
    /// Print JSON: also what is newer, and not complete
    #[arg(long)]
    pub json: bool,
}

/// Set aside what is newer than the newest complete checkpoint
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs rollback --dry-run /mnt/tensors/run-7
  tensorfs rollback /mnt/tensors/run-7

A program that goes on from whatever is newest then finds a checkpoint that is
complete (tensorfs latest says which). What is not complete is renamed into
DIR/.rolled-back, or into what --to names, and nothing is deleted. Nothing is done
while something of it is still being written. It may be interrupted, and run again.

Exit status: 0 the newest is complete now, 1 it is not, or nothing is complete.")]
pub struct Rollback {
    /// A directory on a mount
    pub dir: PathBuf,
    /// Rename into this directory, on the same mount [default: DIR/.rolled-back]
    #[arg(long, value_name = "DIRECTORY")]
    pub to: Option<PathBuf>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the chain of a file: which bytes became part of it together, and when
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs records /mnt/tensors/run-7/events.out.tfevents
  tensorfs records /var/lib/tensors:/run-7/model.pt      a pool that is not mounted
  tensorfs records --json --follow /mnt/tensors/log

A record is open until it is durable, committed until it has a checksum, and then
sealed.")]
pub struct Records {
    /// Files on a mount; POOL:/path
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Print a line of JSON for each record
    #[arg(long)]
    pub json: bool,
    /// Go on, and print records as they come, until the file is gone
    #[arg(short, long)]
    pub follow: bool,
}

/// Compare the bytes of sealed files with their checksums, tensor by tensor
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs verify /mnt/tensors/run-7/model.safetensors
  tensorfs verify /var/lib/tensors              a pool that is not mounted
  tensorfs verify --seal /mnt/tensors --json

--json prints a line for each tensor, and one for each file behind its tensors.

Exit status: 0 nothing is damaged, or it is mended; 1 a file could not be read, 4 a
file is damaged, 5 a file is interrupted: its bytes are as they were written, and who wrote them was
killed, or it ends too early; or a checkpoint lacks files.")]
pub struct Verify {
    /// Files or directories on a mount; pools; POOL:/path
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Have files sealed first that are not
    #[arg(long)]
    pub seal: bool,
    /// Mend damaged files of a mount with its second copy (tensorfs remote)
    #[arg(long)]
    pub mend: bool,
    /// The file has this number, and is known to be damaged: it is mended, and not read before
    #[arg(long, hide = true, requires = "mend", value_name = "NUMBER")]
    pub known: Option<u64>,
    /// Say also which files are whole
    #[arg(short, long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Give files their checksums now, those that nothing can write
///
/// They get them by themselves some seconds after they are closed.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 all are sealed, 1 some are not, which are named with the reason.")]
pub struct Seal {
    /// Files or directories on a mount; pools; POOL:/path
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Look again at files that are sealed: this tensorfs may recognise more
    /// tensors than the one that sealed them
    #[arg(long)]
    pub again: bool,
}

/// Unmount, and wait until everything is in the pool
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 unmounted and closed, 1 still mounted, 3 unmounted here, but the
server goes on: a line says for whom.")]
pub struct Umount {
    /// Where a pool is mounted
    pub mountpoint: PathBuf,
    /// Detach now, even when files are open; the server goes on for them until
    /// the last one is closed
    #[arg(short, long)]
    pub lazy: bool,
    /// Wait so long for those who have files open to close them, and for the
    /// server to end
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds, conflicts_with = "lazy")]
    pub timeout: Option<Duration>,
}

/// Have another program serve a mount that has a keeper, unnoticed
///
/// Whoever uses the mount sees a pause. If the new program cannot serve it, the
/// one before goes on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs upgrade /mnt/tensors
  tensorfs upgrade /mnt/tensors --to ./tensorfs-0.2.0")]
pub struct Upgrade {
    /// A mount point, or a pool that is mounted
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub target: PathBuf,
    /// The program [default: this one]
    #[arg(long, value_name = "PROGRAM")]
    pub to: Option<PathBuf>,
    /// Where to log, if the server's keeper has died
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Show what a pool is, holds and does
#[derive(Debug, Args)]
pub struct Info {
    /// A pool or a mount point
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub target: PathBuf,
    /// Print JSON, with stable field names
    #[arg(long)]
    pub json: bool,
}

/// Say whether a mount serves, for probes: bounded in time
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs health /mnt/tensors
  tensorfs health --timeout 2 --json /mnt/tensors

Exit status: 0 it serves, 1 it serves, but something is wrong, 2 it does not serve,
or did not answer in time.")]
pub struct Health {
    /// A mount point, or a pool that is mounted
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub target: PathBuf,
    /// Wait this long for an answer [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub timeout: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// This process is the one that asks, and may have to be left behind
    #[arg(long, hide = true)]
    pub ask: bool,
}

/// Print what there is to count of mounts, for Prometheus
///
/// Prints OpenMetrics text: requests and how long they took, commits and their lag, space, damage, the last scrub. No
/// port is opened. tensorfs_up is 0 for a mount that does not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 all mounts answered, 1 some did not.")]
pub struct Metrics {
    /// Mount points, or pools that are mounted
    #[arg(value_name = "POOL|MOUNTPOINT", required = true)]
    pub targets: Vec<PathBuf>,
    /// Write the file tensorfs.prom into this directory, as node exporter reads it, in one step
    #[arg(long, value_name = "DIR")]
    pub textfile: Option<PathBuf>,
    /// Wait this long for the answer of each mount [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub timeout: Option<Duration>,
    /// This process is the one that asks, and may have to be left behind
    #[arg(long, hide = true)]
    pub ask: bool,
}

/// Show who does what on a mount, now: by process and by directory
///
/// What the kernel does by itself is not seen: reads and writes of files that are
/// open in passthrough, and what it has in its cache.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs top /mnt/tensors
  tensorfs top --interval 10 --count 1 --json /mnt/tensors

Only root and the user who runs the server may look. OPENS tells how many files were
opened in passthrough, and how many through the server (+).")]
pub struct Top {
    /// A mount point, or a pool that is mounted
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub target: PathBuf,
    /// Tell each so many seconds [default: 2]
    #[arg(short, long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub interval: Option<Duration>,
    /// Tell so many times, and end
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// So many rows of each table at most
    #[arg(long, value_name = "N", default_value = "10")]
    pub rows: usize,
    /// Print JSON, a line each time
    #[arg(long)]
    pub json: bool,
}

/// Print a line for each request of a mount, with the reason if it was slow
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs trace /mnt/tensors
  tensorfs trace --slow 0.1 /mnt/tensors
  tensorfs trace --json /mnt/tensors | jq 'select(.error)'

Only root and the user who runs the server may look.")]
pub struct Trace {
    /// A mount point, or a pool that is mounted
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub target: PathBuf,
    /// Only requests that took so long
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub slow: Option<Duration>,
    /// End after so many
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// Print a line of JSON for each
    #[arg(long)]
    pub json: bool,
}

/// Run a program when damage is found
///
/// Asks the mount now and then, until it is unmounted. The mount option on-damage=PROGRAM starts this.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs alarm --run /usr/local/sbin/tell /mnt/tensors
  mount -t tensorfs -o on-damage=/usr/local/sbin/tell /var/lib/tensors /mnt/tensors

PROGRAM gets the mount point as its argument and in TENSORFS_MOUNTPOINT, the pool in
TENSORFS_POOL, and what is new on standard input, a line each. It is run with the
rights of whoever runs this, never with less said: if it fails, it is run again.")]
pub struct Alarm {
    /// Where a pool is mounted
    pub mountpoint: PathBuf,
    /// The program
    #[arg(long, value_name = "PROGRAM", value_parser = options::parse_program)]
    pub run: PathBuf,
    /// Ask each so many seconds [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub every: Option<Duration>,
    /// End the program after so many seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = options::parse_seconds)]
    pub timeout: Option<Duration>,
    /// Append what is said to this file, with what the program says and how it ended
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Nobody hears what this says: without a file it goes to syslog
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Have a pool carried to its remote for as long as it is mounted: the mount option carry starts this
#[derive(Debug, Args)]
pub struct Carrying {
    /// The pool's directory
    pub pool: PathBuf,
    /// Where it is mounted, or is about to be
    pub mountpoint: PathBuf,
    /// What trees of so many days do not need is removed once a day
    #[arg(long, value_name = "DAYS")]
    pub keep: Option<u32>,
    /// Append what is said to this file, and not to syslog
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Make everything written so far durable, now
///
/// sync(1) does not reach a FUSE filesystem; this does.
#[derive(Debug, Args)]
pub struct Sync {
    /// Where a pool is mounted
    pub mountpoint: PathBuf,
    /// Only have the kernel write what programs have stored through mappings of the
    /// mount with this number: this process may have to be left behind
    #[arg(long, hide = true, value_name = "NUMBER")]
    pub write_back: Option<u32>,
}

/// List quarantined versions of files, bring one back, or drop one
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs restore /mnt/tensors
  tensorfs restore /mnt/tensors NAME
  tensorfs restore /mnt/tensors NAME --to /tmp/old.pt
  tensorfs restore /mnt/tensors NAME --discard")]
pub struct Restore {
    /// A mounted pool, or its mount point
    #[arg(value_name = "POOL|MOUNTPOINT")]
    pub target: PathBuf,
    /// The version to bring back, as listed; without it, list them all
    pub name: Option<String>,
    /// Bring it back here instead of where it was
    #[arg(long, value_name = "PATH", requires = "name")]
    pub to: Option<PathBuf>,
    /// Remove it for good, and bring back nothing
    #[arg(long, requires = "name", conflicts_with = "to")]
    pub discard: bool,
}

/// List the tensors in files: smdebug, TensorBoard, torch, safetensors, NumPy
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs tensors model.safetensors
  tensorfs tensors /mnt/tensors/run-7 --name '*.weight' --step 100..200
  tensorfs tensors checkpoint.pt --json | jq .name

Works on any file, in a pool or not; of sealed files it is known already.
--json prints a line for each tensor.

Exit status: 0 done, 1 a file could not be read or holds no tensors, 2 wrong
usage, 4 an event file is damaged.")]
pub struct Tensors {
    /// Files, or directories to look into
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Only tensors with such a name: * is any text, ? any character, [a-z] one
    /// of these; may be given more than once
    #[arg(long, value_name = "GLOB")]
    pub name: Vec<Glob>,
    /// Only those of a step or a range of steps, both ends included: 5, 5..9, 5..
    #[arg(long, value_name = "A..B", allow_hyphen_values = true)]
    pub step: Option<Steps>,
    /// Only those of this mode of smdebug: train, eval, predict, global
    #[arg(long, value_name = "MODE", value_parser = filter::parse_mode)]
    pub mode: Option<Mode>,
    /// Only those of this type: float32, bf16, int64, ...
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
    /// Print JSON, a line for each tensor
    #[arg(long)]
    pub json: bool,
}

/// Write a tensor to standard output, as a .npy file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tensorfs cat model.safetensors layer.0.weight > x.npy
  tensorfs cat events.tfevents loss@last > loss.npy")]
pub struct Cat {
    /// The file that the tensor is in, or the directory of a checkpoint
    pub path: PathBuf,
    /// Its name, with @STEP or @last if there are several of that name
    #[arg(value_name = "TENSOR[@STEP]")]
    pub tensor: String,
}

/// Show what the numbers in a tensor are like
///
/// Minimum, maximum, mean and standard deviation are those of the finite numbers.
#[derive(Debug, Args)]
pub struct Stat {
    /// The file that the tensor is in, or the directory of a checkpoint
    pub path: PathBuf,
    /// Its name, with @STEP or @last if there are several of that name
    #[arg(value_name = "TENSOR[@STEP]")]
    pub tensor: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show which tensors differ between two files, and by how much
///
/// Tensors are compared by name, step and mode; the formats may differ. MAX ABS is
/// the largest difference, MAX REL the largest one in proportion to the larger
/// element, ELEMENTS how many differ. NaN equals NaN.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 all the same, 1 some differ, 2 could not be compared.")]
pub struct Diff {
    /// A file, or the directory of a checkpoint
    pub old: PathBuf,
    /// Another one
    pub new: PathBuf,
    /// Read and compare bytes even where the checksums of sealed files are equal
    #[arg(long)]
    pub bytes: bool,
    /// Print JSON, a line for each tensor that differs
    #[arg(long)]
    pub json: bool,
}

/// Mount a tensorfs pool; called by mount(8)
///
/// In /etc/fstab:
///   /var/lib/tensors  /mnt/tensors  tensorfs  defaults,nofail  0 0
#[derive(Debug, Parser)]
#[command(name = "mount.tensorfs", version = VERSION, verbatim_doc_comment, max_term_width = 80)]
pub struct Mount8 {
    /// The pool's directory
    pub pool: PathBuf,
    /// The directory the files appear in
    pub mountpoint: PathBuf,
    /// Tolerate unknown options
    #[arg(short, action = ArgAction::Count)]
    pub sloppy: u8,
    /// Check everything, but do not mount
    #[arg(short, action = ArgAction::Count)]
    pub fake: u8,
    /// Leave /etc/mtab alone (as always)
    #[arg(short, action = ArgAction::Count)]
    pub no_mtab: u8,
    /// Say what is done
    #[arg(short, action = ArgAction::Count)]
    pub verbose: u8,
    /// The type from /etc/fstab
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    pub fs_type: Option<OsString>,
    /// Mount options
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
        Mount8::command().debug_assert();
    }

    #[test]
    fn mount8_takes_what_mount_gives() {
        let mount =
            Mount8::parse_from(["mount.tensorfs", "/p", "/m", "-s", "-v", "-n", "-t", "tensorfs", "-o", "rw,nofail"]);
        assert_eq!((mount.sloppy, mount.verbose, mount.fake), (1, 1, 0));
        assert_eq!(mount.options, ["rw,nofail"]);
    }
}
