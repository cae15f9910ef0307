//! Small files by value: what the log holds of a file's bytes never stands in the way of newer ones that are durable in
//! its segment, and costs one flush.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tensorfs_crash::blob::Choice;
use tensorfs_crash::disk::{Disk, Kind};
use tensorfs_crash::medium::Simulation;
use tensorfs_crash::scratch::Scratch;
use tensorfs_crash::snapshot;
use tensorfs_fs::Durability;
use tensorfs_fs::testing::{Direct, Handle};
use tensorfs_layout::log::{Attributes, Record, Transaction};
use tensorfs_layout::pool::{CreateOptions, LIMIT_MIN, OpenOptions, Pool};
use tensorfs_layout::{Ino, ROOT};

const BOOT: [u8; 16] = [1; 16];
const NEXT_BOOT: [u8; 16] = [2; 16];

/// A pool in use on a simulated medium.
struct Mount {
    direct: Direct,
    simulation: Simulation,
}

impl Mount {
    fn new(scratch: &mut Scratch) -> Self {
        Self::limited(None, scratch)
    }

    fn limited(limit: Option<u64>, scratch: &mut Scratch) -> Self {
        let made = scratch.fresh();
        Pool::create(&made, &CreateOptions { block_size: 4096, limit, ..CreateOptions::default() }).unwrap();
        let disk = Disk::new(Kind::Cached, &std::fs::read(made.join("log")).unwrap());
        Self::on(disk, BOOT, scratch)
    }

    fn on(disk: Disk, boot: [u8; 16], scratch: &mut Scratch) -> Self {
        let (path, files) = scratch.write(&disk).unwrap();
        let simulation = Simulation::watched(disk, &path, files);
        let options = OpenOptions { boot_id: Some(boot), ..OpenOptions::default() };
        let pool = Arc::new(Pool::open_with_medium(&path, &options, simulation.medium()).unwrap());
        Self { direct: Direct::new(pool, Durability::Fsync), simulation }
    }

    /// A new file whose bytes are durable by value, still open.
    fn file(&self, name: &str, bytes: &[u8]) -> (Ino, Handle) {
        let (ino, handle) = self.direct.create(ROOT, name, 0o644).unwrap();
        self.direct.write(handle, 0, bytes).unwrap();
        self.direct.fsync(ino, handle).unwrap();
        assert!(self.direct.pool().view().object(ino).unwrap().has_value());
        (ino, handle)
    }

    /// What `msync` and an `O_SYNC` write do in passthrough: the server hears nothing of it.
    fn write_durably(&self, handle: Handle, bytes: &[u8]) {
        let segments = self.direct.pool().segments();
        let fd = segments.open(self.direct.segment(handle).unwrap(), libc::O_RDWR).unwrap();
        let file = std::fs::File::from(fd);
        file.write_all_at(bytes, 0).unwrap();
        self.simulation.medium().sync_segment(file.as_fd()).unwrap();
    }

    /// The least that a power loss leaves, recovered.
    fn after_power_loss(&self, scratch: &mut Scratch) -> Mount {
        self.simulation.look();
        let disk = self.simulation.disk();
        let oldest = vec![Choice::Whole(0); disk.axes().len()];
        Mount::on(disk.after_power_loss(&oldest), NEXT_BOOT, scratch)
    }

    fn content(&self, path: &str) -> Vec<u8> {
        snapshot::take(self.direct.pool()).unwrap()[path].content.clone().unwrap()
    }
}

#[test]
fn a_new_small_file_is_durable_with_one_flush() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (_, handle) = mount.file("first", b"says in the superblock that there are values");
    mount.direct.close(handle).unwrap();
    let before = mount.direct.pool().flushes();
    let (_, handle) = mount.file("a", b"bytes");
    mount.direct.close(handle).unwrap();
    let after = mount.direct.pool().flushes();
    assert_eq!(
        (after.log, after.segments, after.directories, after.host),
        (before.log + 1, before.segments, before.directories, 0)
    );
    let again = mount.after_power_loss(&mut scratch);
    assert_eq!(again.content("/a"), b"bytes");
}

#[test]
fn a_new_small_file_its_rename_and_its_directory_are_durable_with_one_flush() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    mount.file("first", b"x");
    let (_, handle) = mount.direct.create(ROOT, "a.tmp", 0o644).unwrap();
    mount.direct.write(handle, 0, b"bytes").unwrap();
    mount.direct.close(handle).unwrap();
    mount.direct.rename((ROOT, "a.tmp"), (ROOT, "a"), false).unwrap();
    let before = mount.direct.pool().flushes();
    mount.direct.sync().unwrap();
    let after = mount.direct.pool().flushes();
    assert_eq!(
        (after.log, after.segments, after.directories, after.host),
        (before.log + 1, before.segments, before.directories, 0)
    );
    assert_eq!(mount.after_power_loss(&mut scratch).content("/a"), b"bytes");
}

#[test]
fn bytes_made_durable_through_a_mapping_are_newer_than_a_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, first) = mount.file("closed", b"older");
    mount.direct.close(first).unwrap();
    let handle = mount.direct.open(ino, libc::O_RDWR).unwrap();
    mount.write_durably(handle, b"newer");
    let (ino, _first) = mount.file("open", b"older");
    let handle = mount.direct.open(ino, libc::O_RDWR).unwrap();
    mount.write_durably(handle, b"newer");
    let again = mount.after_power_loss(&mut scratch);
    assert_eq!(again.content("/closed"), b"newer");
    assert_eq!(again.content("/open"), b"newer");
}

#[test]
fn bytes_of_a_synchronous_write_are_newer_than_a_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, first) = mount.file("f", b"older");
    let handle = mount.direct.open(ino, libc::O_WRONLY | libc::O_DSYNC).unwrap();
    mount.write_durably(handle, b"newer");
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"newer");
    // From now on it is synced as others are.
    mount.direct.write(first, 0, b"third").unwrap();
    mount.direct.fsync(ino, first).unwrap();
    assert!(!mount.direct.pool().view().object(ino).unwrap().has_value());
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"third");
}

/// Also where what was changed is as long as before, and was changed within one tick of the host's clock.
#[test]
fn what_a_killed_server_had_accepted_is_newer_than_a_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (_, handle) = mount.file("f", b"older");
    mount.direct.write(handle, 0, b"newer").unwrap();
    mount.simulation.look();
    let successor = Mount::on(mount.simulation.disk(), BOOT, &mut scratch);
    assert_eq!(successor.content("/f"), b"newer");
    assert_eq!(successor.after_power_loss(&mut scratch).content("/f"), b"newer");
}

/// A value can be read while a write is under way, whose time is set before its bytes are there. Then nothing but the
/// bytes tells that the value is not what the segment holds.
#[test]
fn a_value_read_during_a_write_does_not_outlive_the_sync_of_what_was_written() {
    let mut scratch = Scratch::new();
    let mount = Mount::limited(Some(LIMIT_MIN), &mut scratch);
    let (ino, handle) = mount.direct.create(ROOT, "f", 0o644).unwrap();
    mount.direct.write(handle, 0, b"older").unwrap();
    let segment = mount.direct.segment(handle).unwrap();
    let segments = mount.direct.pool().segments();
    let file = std::fs::File::from(segments.open(segment, libc::O_RDWR).unwrap());
    // SAFETY: nothing but this test changes the segment while it is mapped.
    let mut under_way = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    under_way[..5].copy_from_slice(b"older");
    // So that the time of the segment is old enough to tell.
    std::thread::sleep(std::time::Duration::from_millis(50));
    mount.direct.fsync(ino, handle).unwrap();
    assert!(mount.direct.pool().view().object(ino).unwrap().has_value());
    // The log takes no more of them for now.
    for n in 0.. {
        let Some(room) = mount.direct.pool().value_room() else { break };
        let (_, handle) = mount.file(&format!("other{n}"), &vec![7; room]);
        mount.direct.close(handle).unwrap();
    }
    let before = segments.stat(segment).unwrap();
    under_way[..5].copy_from_slice(b"newer");
    assert_eq!(segments.stat(segment).unwrap().ctime, before.ctime, "the write was under way before");
    mount.direct.fsync(ino, handle).unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"newer");
}

#[test]
fn who_opens_a_file_to_map_it_while_its_value_is_being_settled_voids_it() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, _first) = mount.file("f", b"older");
    mount.direct.settle_values().unwrap();
    let handle = mount.direct.open(ino, libc::O_RDWR).unwrap();
    mount.write_durably(handle, b"newer");
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"newer");
}

/// It was settled, and the log cleaned of it: that the segment holds the same bytes again does not make them durable.
#[test]
fn a_value_that_the_log_has_no_more_is_no_reason_not_to_sync() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (_, handle) = mount.file("f", b"older");
    let pool = mount.direct.pool();
    for n in 0.. {
        if pool.usage().free_blocks <= 2 {
            break;
        }
        mount.direct.make(ROOT, &format!("d{n}"), libc::S_IFDIR | 0o755).unwrap();
    }
    while pool.reclaim().unwrap() {}
    mount.direct.write(handle, 0, b"newer").unwrap();
    // What the host may do at any time.
    let fd = pool.segments().open(mount.direct.segment(handle).unwrap(), libc::O_RDONLY).unwrap();
    mount.simulation.medium().sync_segment(fd.as_fd()).unwrap();
    mount.direct.write(handle, 0, b"older").unwrap();
    mount.direct.sync().unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"older");
}

/// Nothing is made durable for it: what is written then is heard of.
#[test]
fn a_small_file_opened_again_to_append_goes_on_by_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, first) = mount.file("f", b"one");
    mount.direct.close(first).unwrap();
    let before = mount.direct.pool().flushes();
    let handle = mount.direct.open(ino, libc::O_WRONLY | libc::O_APPEND).unwrap();
    assert_eq!(mount.direct.pool().flushes(), before);
    mount.direct.write(handle, 3, b", two").unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"one");
    mount.direct.fsync(ino, handle).unwrap();
    let after = mount.direct.pool().flushes();
    assert_eq!((after.log, after.segments, after.host), (before.log + 1, before.segments, before.host));
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"one, two");
    // Nor does the older value come back once others know of what was written.
    mount.direct.write(handle, 0, b"new").unwrap();
    mount.direct.round(false).unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"new, two");
}

/// It is for whoever has the file open to say what it has become, and for the background.
#[test]
fn a_commit_of_others_records_nothing_that_an_open_file_has_grown_by() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    mount.file("first", b"says in the superblock that there are values");
    let (ino, handle) = mount.direct.create(ROOT, "f", 0o644).unwrap();
    mount.direct.write(handle, 0, b"older").unwrap();
    // Recorded before it has the name.
    mount.direct.link(ino, ROOT, "g").unwrap();
    mount.file("others", b"by value, and so is what is recorded of the open file");
    assert!(mount.direct.pool().view().object(ino).unwrap().has_value());
    mount.direct.write(handle, 5, b", newer").unwrap();
    mount.direct.link(ino, ROOT, "h").unwrap();
    mount.direct.write(handle, 12, b", newest").unwrap();
    mount.file("another", b"bytes");
    assert_eq!(mount.direct.pool().view().object(ino).unwrap().size(), 12);
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"older, newer");
    mount.direct.fsync(ino, handle).unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"older, newer, newest");
}

/// Bytes that are bad stay so, whatever holds them.
#[test]
fn a_damaged_file_is_not_committed_by_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, handle) = mount.file("f", b"bytes");
    mount.direct.close(handle).unwrap();
    let pool = mount.direct.pool();
    let attributes = pool.view().object(ino).unwrap().attributes.clone();
    let damaged = Attributes { damaged: true, ..attributes };
    pool.edit().store(Transaction::new(0).with(Record::Attributes { ino, attributes: damaged })).unwrap();
    // As any file's are in time.
    mount.direct.round(false).unwrap();
    let handle = mount.direct.open(ino, libc::O_WRONLY | libc::O_APPEND).unwrap();
    mount.direct.write(handle, 5, b" and more").unwrap();
    mount.direct.fsync(ino, handle).unwrap();
    assert!(!pool.view().object(ino).unwrap().has_value());
    assert!(pool.view().object(ino).unwrap().attributes.damaged);
}

/// A program may have a file mapped since an earlier mount, of which this one knows nothing.
#[test]
fn what_a_mapping_of_an_earlier_mount_makes_durable_is_newer_than_a_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, handle) = mount.file("f", b"older");
    mount.direct.close(handle).unwrap();
    let segments = mount.direct.pool().segments();
    let segment = mount.direct.pool().view().object(ino).unwrap().attributes.segment.unwrap();
    let file = std::fs::File::from(segments.open(segment, libc::O_RDWR).unwrap());
    // SAFETY: nothing but this test changes the segment while it is mapped.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let handle = mount.direct.open(ino, libc::O_WRONLY).unwrap();
    mount.direct.write(handle, 0, b"later").unwrap();
    mount.direct.fsync(ino, handle).unwrap();
    mapped[..5].copy_from_slice(b"newer");
    mount.simulation.medium().sync_segment(file.as_fd()).unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"newer");
}

/// Bytes of the log's blocks that hold something.
fn used(mount: &Mount) -> u64 {
    let usage = mount.direct.pool().usage();
    (usage.log_blocks - usage.free_blocks) * 4096
}

#[test]
fn the_background_makes_segments_durable_and_the_log_forgets_their_bytes() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let bytes = vec![7; 1500];
    let (open, _handle) = mount.file("open", &bytes);
    for n in 0..50 {
        let (ino, handle) = mount.file(&format!("f{n}"), &bytes);
        mount.direct.close(handle).unwrap();
        if n % 10 == 9 {
            mount.direct.round(false).unwrap();
            assert!(
                !mount.direct.pool().view().object(open).unwrap().has_value(),
                "an open file goes on by its segment"
            );
            assert!(
                mount.direct.pool().view().object(ino).unwrap().has_value(),
                "the record is there until it is cleaned"
            );
        }
    }
    for _ in 0..8 {
        mount.direct.round(false).unwrap();
    }
    assert!(used(&mount) < 50 * 1000, "{} bytes of log are in use", used(&mount));
    let again = mount.after_power_loss(&mut scratch);
    for n in 0..50 {
        assert_eq!(again.content(&format!("/f{n}")), bytes);
    }
}

#[test]
fn a_log_full_of_values_is_cleaned_where_room_is_needed() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    for n in 0..40 {
        let (_, handle) = mount.file(&format!("f{n}"), &[7; 1500]);
        mount.direct.close(handle).unwrap();
    }
    assert!(used(&mount) > 40 * 1500);
    while mount.direct.pool().usage().free_blocks > 2 {
        mount.direct.change(ROOT, Some(0o755), None).unwrap();
        mount.direct.make(ROOT, &format!("d{}", mount.direct.pool().newest()), libc::S_IFDIR | 0o755).unwrap();
    }
    assert!(mount.direct.pool().reclaim().unwrap());
    assert!(mount.direct.pool().usage().free_blocks > 2);
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f39"), [7; 1500]);
}

#[test]
fn a_seal_has_the_segment_of_a_value_synced() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, handle) = mount.file("f", b"bytes");
    mount.direct.close(handle).unwrap();
    mount.direct.seal(ino).unwrap();
    assert!(!mount.direct.pool().view().object(ino).unwrap().has_value());
    mount.direct.pool().commit(mount.direct.pool().newest()).unwrap();
    assert_eq!(mount.after_power_loss(&mut scratch).content("/f"), b"bytes");
}

#[test]
fn an_older_program_refuses_a_pool_that_held_values() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    assert_eq!(mount.direct.pool().superblock().features.incompat, 0);
    mount.file("f", b"bytes");
    assert_eq!(mount.direct.pool().superblock().features.incompat, 2 | 4);
}

#[test]
fn a_file_that_can_be_mapped_to_write_is_not_committed_by_value() {
    let mut scratch = Scratch::new();
    let mount = Mount::new(&mut scratch);
    let (ino, first) = mount.direct.create(ROOT, "f", 0o644).unwrap();
    let mapped = mount.direct.open(ino, libc::O_RDWR).unwrap();
    mount.direct.write(first, 0, b"bytes").unwrap();
    mount.direct.fsync(ino, first).unwrap();
    mount.direct.close(mapped).unwrap();
    assert!(!mount.direct.pool().view().object(ino).unwrap().has_value());
    mount.direct.fsync(ino, first).unwrap();
    assert!(!mount.direct.pool().view().object(ino).unwrap().has_value(), "the mapping may live on");
}
