//! Every command and every flag, as plain data that its command reads.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::when::{self, At};
use crate::crypt::Id;

const EXAMPLES: &str = "\
Examples:
  tensorfs remote set /var/lib/tensors s3://bucket/run-7
  tensorfs remote carry /var/lib/tensors --watch
  tensorfs remote wait /mnt/tensors/checkpoint-1000
  tensorfs remote restore s3://bucket/run-7 /var/lib/tensors

Encrypted here, so that the store cannot read it:
  tensorfs remote key /etc/tensorfs/run-7.key
  tensorfs remote set /var/lib/tensors s3://bucket/run-7 --key-file /etc/tensorfs/run-7.key

A URL is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY.
Credentials are those of the environment (AWS_ACCESS_KEY_ID and its like; for s3 also
~/.aws/credentials). They are kept nowhere.

Exit status: 0 done, 1 failed or something is wrong (one line says what), 2 wrong usage,
3 what `wait --timeout` waited for has not come in time.";

/// The longest that somebody may want to wait: a week.
const LONGEST: f64 = 7.0 * 24.0 * 3600.0;

/// What was built, as far as the build knew.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("TENSORFS_COMMIT"));

/// Keep a second copy of a pool in an object store
#[derive(Debug, Parser)]
#[command(name = "tensorfs remote", version = VERSION, after_help = EXAMPLES, max_term_width = 80)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
    /// Tell on standard error how far it has come: by a bar if that is a terminal, by a line of JSON a second, or not
    #[arg(long, global = true, value_enum, value_name = "HOW", default_value_t = Progress::Auto)]
    pub progress: Progress,
}

/// How it is told how far something has come.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Progress {
    Auto,
    Json,
    None,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give a pool a remote; nothing is carried yet
    Set(Set),
    /// Make a key to encrypt remotes with, in a new file
    Key(Key),
    /// Take a pool's remote away; what is there stays there
    Off(Pool),
    /// Tell where a pool's remote is, how far it has come, and what went wrong last
    Status(Status),
    /// Carry what is committed and at rest to the remote, once or for as long as this runs
    Carry(Carry),
    /// Return when files are in the remote, whole, as they are now
    Wait(Wait),
    /// List what a remote holds
    List(List),
    /// Bring back the bytes of one file
    Get(Get),
    /// Check that everything a remote names is there
    Check(Check),
    /// Remove from a remote what its retention does not need
    Gc(Gc),
    /// Make a pool from a remote; what was interrupted is gone on with
    Restore(Restore),
    /// Fetch the files of a mount whose bytes are in a remote yet; whoever mounts starts it
    #[command(hide = true)]
    Bring(Bring),
    /// Let files of a mount leave it whose numbers come on standard input, a line each: `tier move` starts it
    #[command(hide = true)]
    Evict(Evict),
    /// Do for a carrier of the pool what that may not do, as it is locked in; it starts this
    #[command(hide = true)]
    Outside(Outside),
    /// Write the manual pages of `tensorfs remote` and of this program into a directory; for packages
    #[command(hide = true)]
    Manual(Manual),
    /// Print what completes the arguments of `tensorfs-carrier` in a shell; for packages
    #[command(hide = true)]
    Completions(Completions),
}

impl Command {
    /// The pool that it is done with, if that can be named by where it is mounted.
    pub fn pool(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Set(Set { pool, .. })
            | Self::Off(Pool { pool })
            | Self::Status(Status { pool, .. })
            | Self::Carry(Carry { pool, .. })
            | Self::Gc(Gc { pool, .. }) => Some(pool),
            _ => None,
        }
    }
}

/// `outside`
#[derive(Debug, Args)]
pub struct Outside {
    /// The pool's directory
    pub pool: PathBuf,
}

/// `manual`
#[derive(Debug, Args)]
pub struct Manual {
    /// The directory
    pub directory: PathBuf,
}

/// `completions`
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// How a store is reached.
#[derive(Debug, Default, Clone, Args)]
pub struct Reach {
    /// Where an S3 store is that is not Amazon's, such as http://ceph:7480
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// The store's region
    #[arg(long)]
    pub region: Option<String>,
    /// The remote is encrypted with the key in this file, which `tensorfs remote key` makes
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// It is the encrypted remote of this ID, and no other one of its key; `status` and `restore` tell it
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    pub id: Option<Id>,
}

/// `key`
#[derive(Debug, Args)]
pub struct Key {
    /// The file, which is not there yet
    pub file: PathBuf,
}

/// A pool.
#[derive(Debug, Args)]
pub struct Pool {
    /// The pool's directory, or where it is mounted
    pub pool: PathBuf,
}

/// `set`
#[derive(Debug, Args)]
pub struct Set {
    /// The pool's directory, or where it is mounted
    pub pool: PathBuf,
    /// Where its remote is to be; a place of its own
    pub url: String,
    #[command(flatten)]
    pub reach: Reach,
    /// The most MiB a second that are put
    #[arg(long, value_name = "MIB")]
    pub bandwidth: Option<u64>,
    /// Have an S3 store encrypt what is put
    #[arg(long, value_name = "METHOD", value_parser = ["AES256", "aws:kms", "aws:kms:dsse"])]
    pub sse: Option<String>,
    /// With this key of its key management service
    #[arg(long, value_name = "ID")]
    pub sse_kms_key: Option<String>,
    /// Put objects in this class of the store, such as STANDARD_IA
    #[arg(long, value_name = "CLASS")]
    pub storage_class: Option<String>,
    /// Leave out what fits this glob, with all that is below it: one without a slash fits a name in any directory, one
    /// with a slash a path from the root; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Go on with what another pool has put there, which may put nothing more
    #[arg(long)]
    pub take_over: bool,
}

/// `status`
#[derive(Debug, Args)]
pub struct Status {
    /// The pool's directory, or where it is mounted
    pub pool: PathBuf,
    /// Fail if what the remote has is older than this
    #[arg(long, value_name = "SECONDS")]
    pub max_age: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `carry`
#[derive(Debug, Args)]
pub struct Carry {
    /// The pool's directory, or where it is mounted
    pub pool: PathBuf,
    /// Go on until this is ended
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks at the pool
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub interval: u64,
    /// Seconds that a batch waits for files which are about to come to rest; then these are carried as far as they are
    /// sealed
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub patience: u64,
    /// Seconds after which the end of a file that stays open, which is not sealed, is carried as it is, and again, if
    /// that is no more than 64 MiB; 0: it is not. Without --watch it is carried at once
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub open_every: u64,
    /// Once a day remove from the remote what trees of so many days do not need, as `gc` does
    #[arg(long, value_name = "DAYS")]
    pub keep: Option<u32>,
    /// Once a day remove from the remote what the newest so many trees do not need; with --keep, what neither keeps
    #[arg(long, value_name = "TREES", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_last: Option<u64>,
    /// With --watch: leave damaged files of the mount as they are, and do not mend them with what the remote has
    #[arg(long)]
    pub no_mend: bool,
    /// Print JSON, a line for each batch
    #[arg(long)]
    pub json: bool,
}

/// `wait`
#[derive(Debug, Args)]
pub struct Wait {
    /// Files and directories on a mount, or a pool that is not mounted; if none is named, all of the mount that the
    /// working directory is on
    pub paths: Vec<PathBuf>,
    /// Wait no longer than this in all
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: Option<Duration>,
}

/// `list`
#[derive(Debug, Args)]
pub struct List {
    /// A remote's URL, or a pool that has one, or where that is mounted
    pub remote: String,
    /// What to list, from the root on
    #[arg(default_value = "/")]
    pub path: String,
    #[command(flatten)]
    pub reach: Reach,
    /// As it was after this batch, or at this time: 2026-11-27T10:00, in local time unless Z or +01:00 is behind it
    #[arg(long, value_name = "BATCH|TIME", value_parser = when::parse)]
    pub at: Option<At>,
    /// List the batches that can be had with `--at`, and of when they are
    #[arg(long, conflicts_with_all = ["at", "path"])]
    pub batches: bool,
    /// Print JSON, a line for each object
    #[arg(long)]
    pub json: bool,
}

/// `get`
#[derive(Debug, Args)]
pub struct Get {
    /// A file on a mount, which need not be there any more; or a remote's URL or a pool that has one, and a path in it
    pub remote: OsString,
    /// The file, from the root of the remote on
    pub path: Option<OsString>,
    #[command(flatten)]
    pub reach: Reach,
    /// As it was after this batch, or at this time: 2026-11-27T10:00, in local time unless Z or +01:00 is behind it
    #[arg(long, value_name = "BATCH|TIME", value_parser = when::parse)]
    pub at: Option<At>,
    /// The file on the mount is the one of this number, and no other
    #[arg(long, hide = true)]
    pub ino: Option<u64>,
    /// Write to this file, which is not there yet, and not to standard output
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// `check`
#[derive(Debug, Args)]
pub struct Check {
    /// A remote's URL, or a pool that has one, or where that is mounted
    pub remote: String,
    #[command(flatten)]
    pub reach: Reach,
    /// Read all objects and compare them with their checksums
    #[arg(long)]
    pub data: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gc`
#[derive(Debug, Args)]
pub struct Gc {
    /// The pool's directory, or where it is mounted
    pub pool: PathBuf,
    /// Days back to which any tree can be restored afterwards; 7 if nothing is said of what to keep
    #[arg(long, value_name = "DAYS")]
    pub keep: Option<u32>,
    /// So many trees, those of the newest batches, can be restored afterwards; with --keep, those that either keeps
    #[arg(long, value_name = "TREES", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_last: Option<u64>,
    /// Only tell what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `restore`
#[derive(Debug, Args)]
pub struct Restore {
    /// The remote's URL; or that above the places of several pools, which become one
    pub url: String,
    /// The new pool's directory, which is not there or empty
    pub pool: PathBuf,
    #[command(flatten)]
    pub reach: Reach,
    /// As it was after this batch, or at this time: 2026-11-27T10:00, in local time unless Z or +01:00 is behind it
    #[arg(long, value_name = "BATCH|TIME", value_parser = when::parse)]
    pub at: Option<At>,
    /// Only the tree; the bytes of files come when the pool is mounted
    #[arg(long, hide = true)]
    pub later: bool,
    /// With --later: the pool is to go on to newer trees while it is mounted
    #[arg(long, hide = true, requires = "later")]
    pub follow: bool,
    /// Most bytes that the pool may take
    #[arg(long, hide = true, value_name = "BYTES")]
    pub size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `bring`
#[derive(Debug, Args)]
pub struct Bring {
    /// Go on to newer trees of the remote, and look for one every so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub follow: Option<Duration>,
    /// Somebody watches over this process
    #[arg(long, hide = true)]
    pub watched: bool,
    /// The pool's directory
    pub pool: PathBuf,
    /// Where it is mounted, or is going to be
    pub mountpoint: PathBuf,
}

/// `evict`
#[derive(Debug, Args)]
pub struct Evict {
    /// A directory or a file on the mount
    pub path: PathBuf,
    /// Read what the remote has of each file and compare it with the file's checksums
    #[arg(long)]
    pub check_data: bool,
}

fn parse_id(text: &str) -> Result<Id, &'static str> {
    Id::try_from(text.to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("must be a number of seconds up to {LONGEST}")),
    }
}
