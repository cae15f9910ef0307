//! Locks of files, between processes and until the mount ends.

use tensorfs_tests::{Setup, child, on_mounts};

on_mounts!(locks_between_processes, locks_end_with_the_mount,);

/// Proves L1.
fn locks_between_processes(setup: Setup) {
    let mount = setup.mount();
    let path = mount.at("f");
    std::fs::write(&path, "x".repeat(100)).unwrap();
    let (mut one, mut two) = (child(["do"]), child(["do"]));
    for child in [&mut one, &mut two] {
        assert_eq!(child.ask(&format!("open f rw {}", path.display())), "ok");
        assert_eq!(child.ask(&format!("open g rw {}", path.display())), "ok");
    }
    let again = format!("error {}", libc::EAGAIN);
    assert_eq!(one.ask("flock f sh"), "ok");
    assert_eq!(two.ask("flock f sh"), "ok");
    assert_eq!(two.ask("flock f ex"), again);
    assert_eq!(one.ask("flock f un"), "ok");
    assert_eq!(two.ask("flock f ex"), "ok");
    assert_eq!(one.ask("flock f sh"), again);
    assert_eq!(two.ask("flock g sh"), again, "two opens of one process are two owners");
    assert_eq!(two.ask("close f"), "ok");
    assert_eq!(one.ask("flock f ex"), "ok", "closing gives a lock up");
    // Record locks are by range and by process.
    assert_eq!(one.ask("lock f w 0 10"), "ok");
    assert_eq!(two.ask("lock g w 10 10"), "ok");
    assert_eq!(two.ask("lock g r 5 10"), again);
    assert_eq!(one.ask("lock f w 15 1"), again);
    assert_eq!(one.ask("lock g r 0 5"), "ok", "its own lock is not in its way");
    assert_eq!(two.ask("lock g r 0 5"), "ok", "two readers share");
    assert_eq!(two.ask("lock g w 5 5"), again);
    assert_eq!(one.ask("close g"), "ok");
    assert_eq!(two.ask("lock g w 5 5"), "ok", "closing any descriptor gives them all up");
    one.end();
    two.end();
}

/// Proves L1.
fn locks_end_with_the_mount(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    std::fs::write(mount.at("f"), "x").unwrap();
    let (mut one, mut two) = (child(["do"]), child(["do"]));
    assert_eq!(one.ask(&format!("open f rw {}", mount.at("f").display())), "ok");
    assert_eq!(one.ask("flock f ex"), "ok");
    assert_eq!(one.ask("lock f w 0 10"), "ok");
    // The one who holds them lives on, with what is left of the mount.
    mount.kill9();
    mount.mount();
    assert_eq!(two.ask(&format!("open f rw {}", mount.at("f").display())), "ok");
    assert_eq!(two.ask("flock f ex"), "ok");
    assert_eq!(two.ask("lock f w 0 10"), "ok");
    one.end();
    two.end();
}
