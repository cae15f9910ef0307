//! The everyday programs: cp, rsync, tar, mv, git, sqlite3. A tree that went through them is the
//! tree it was.

use std::path::Path;
use std::process::Command;
use tensorfs_tests::{
    Mount, Setup, Tree, assert_same_tree, assert_same_tree_but, is_root, on_mounts, run, run_ok, shell,
};

on_mounts!(
    cp_archive,
    cp_plain_and_reflink,
    rsync_with_everything,
    tar_with_xattrs_and_acls,
    mv_in_and_out,
    git_clone_fsck_gc,
    sqlite_wal_with_mmap_and_two_writers,
);

fn missing(programs: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs
        .iter()
        .find(|program| !std::env::split_paths(&path).any(|dir| dir.join(program).exists()))
        .map(|program| format!("{program} is not installed"))
}

/// A tree with every kind of object that copying programs know. Ends with its own times set.
fn make_tree(directory: &Path) {
    let ordinary = r#"
        mkdir -p tree/empty tree/deep/a/b/c/d tree/private tree/sticky
        cd tree
        head -c 3000000 /dev/urandom > big
        head -c 4096 /dev/urandom > page
        printf x > tiny
        : > nothing
        truncate -s 10M sparse
        printf data | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
        ln big big.hard; ln big deep/a/big.hard
        ln -s big to-big; ln -s nowhere dangling; ln -s "$(printf 'l%.0s' {1..1000})" long-link
        ln to-big to-big.hard
        for i in $(seq 300); do echo "file $i" > deep/a/b/file-$i; done
        for i in $(seq 50); do mkdir deep/a/b/c/dir-$i; echo $i > deep/a/b/c/dir-$i/f; done
        printf 'odd\n' > "$(printf 'a name\twith\nodd \001\377 bytes')"
        printf 'long\n' > "$(printf 'n%.0s' {1..255})"
        mkfifo fifo
        setfattr -n user.short -v value big
        setfattr -n user.binary -v 0x00ff00fe tiny
        setfattr -n user.long -v "$(printf 'v%.0s' {1..3000})" deep
        setfattr -n user.empty page
        setfacl -m u:12345:rw,g:54321:r big
        setfacl -m u:12345:rwx,d:u:12345:rwx,d:g::r-x deep/a
        chmod 1777 sticky; chmod 0400 page; chmod 0700 private; chmod 0755 deep/a/b/file-1
    "#;
    shell(directory, ordinary);
    if is_root() {
        shell(
            directory,
            r#"
            cd tree
            chown 1000:1001 tiny; chown -h 1002:1003 dangling; chown 1000 private
            chmod 6755 tiny; chmod 2770 sticky
            mknod null c 1 3; mknod loop b 7 200
            setfattr -n trusted.mark -v secret page
            "#,
        );
    }
    shell(
        directory,
        r#"
        cd tree
        find . -depth -exec touch -h -d '2005-05-05 05:05:05.050505051' {} +
        touch -d '2001-02-03 04:05:06.123456789' big
        touch -h -d '1985-01-01 00:00:00.000000001' dangling
        touch -d '2100-12-31 23:59:59.999999999' tiny
        touch -d '1969-07-20 20:17:40.5' nothing
        touch -d '2010-10-10 10:10:10.101010101' deep/a/b deep/a deep empty
        touch -d '2011-11-11 11:11:11.111111111' .
        "#,
    );
}

fn tree(path: &Path) -> Tree {
    Tree::read(path)
}

/// The sparse file takes much less than its size.
#[track_caller]
fn assert_still_sparse(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path.join("sparse")).unwrap();
    assert_eq!(meta.size(), 10 << 20);
    assert!(meta.blocks() * 512 < 1 << 20, "a sparse file takes {} bytes", meta.blocks() * 512);
}

/// A tree outside, and what it looks like.
fn outside(mount: &Mount) -> Tree {
    make_tree(&mount.host());
    tree(&mount.host().join("tree"))
}

fn cp_archive(setup: Setup) {
    if let Some(reason) = missing(&["setfattr", "setfacl"]) {
        return setup.skip(&reason);
    }
    let mut mount = setup.mount();
    let want = outside(&mount);
    run_ok(Command::new("cp").arg("-a").arg(mount.host().join("tree")).arg(mount.at("in")));
    assert_same_tree(&tree(&mount.at("in")), &want);
    assert_still_sparse(&mount.at("in"));
    // Within the mount, and out again.
    run_ok(Command::new("cp").arg("-a").arg(mount.at("in")).arg(mount.at("within")));
    run_ok(Command::new("cp").arg("-a").arg(mount.at("within")).arg(mount.host().join("out")));
    assert_same_tree(&tree(&mount.at("within")), &want);
    assert_same_tree(&tree(&mount.host().join("out")), &want);
    assert_still_sparse(&mount.host().join("out"));
    mount.remount();
    assert_same_tree(&tree(&mount.at("in")), &want);
    assert_same_tree(&tree(&mount.at("within")), &want);
    assert_still_sparse(&mount.at("within"));
    // Once more, with the tree made on the mount itself.
    std::fs::create_dir(mount.at("made")).unwrap();
    make_tree(&mount.at("made"));
    let made = tree(&mount.at("made/tree"));
    assert_eq!(made.len(), want.len());
    mount.remount();
    assert_same_tree(&tree(&mount.at("made/tree")), &made);
    run_ok(Command::new("rm").arg("-r").args([mount.at("in"), mount.at("within"), mount.at("made")]));
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 0);
}

fn cp_plain_and_reflink(setup: Setup) {
    let mount = setup.mount();
    let bytes = tensorfs_tests::Pattern(1).bytes(0, 20_000_000);
    std::fs::write(mount.at("a"), &bytes).unwrap();
    shell(mount.path(), "cp a b; cp --reflink=auto a c; cp --sparse=always a d; cat a > e");
    // Clones where the host can, says so where it cannot.
    let clone = run(Command::new("cp").arg("--reflink=always").args([mount.at("a"), mount.at("f")]));
    if clone.status.success() {
        assert!(std::fs::read(mount.at("f")).unwrap() == bytes, "f");
    }
    for name in ["b", "c", "d", "e"] {
        assert!(std::fs::read(mount.at(name)).unwrap() == bytes, "{name}");
    }
    // Over an existing file: the content is replaced, the inode is not.
    shell(
        mount.path(),
        "before=$(stat -c %i b); head -c 100000 a > short; cp short b
         test \"$before\" = \"$(stat -c %i b)\"; cmp b short; cp a b; cmp a b",
    );
}

fn rsync_with_everything(setup: Setup) {
    if let Some(reason) = missing(&["rsync", "setfattr", "setfacl"]) {
        return setup.skip(&reason);
    }
    let mut mount = setup.mount();
    let want = outside(&mount);
    let rsync = |from: &Path, to: &Path| {
        let flags = if is_root() { "-aHAXS" } else { "-aHAX" };
        let (mut from, mut to) = (from.as_os_str().to_owned(), to.as_os_str().to_owned());
        from.push("/");
        to.push("/");
        run_ok(
            Command::new("rsync").args([flags, "--delete", "--itemize-changes", "--modify-window=-1"]).args([from, to]),
        )
    };
    rsync(&mount.host().join("tree"), &mount.at("in"));
    assert_same_tree(&tree(&mount.at("in")), &want);
    assert_still_sparse(&mount.at("in"));
    mount.remount();
    assert_eq!(rsync(&mount.host().join("tree"), &mount.at("in")), "", "a second rsync finds something to do");
    // Changes, in both directions.
    shell(
        &mount.host().join("tree"),
        "rm -r deep/a/b/c; echo changed > deep/a/b/file-7; ln -f tiny deep/a/big.hard; mv big big2",
    );
    rsync(&mount.host().join("tree"), &mount.at("in"));
    let want = tree(&mount.host().join("tree"));
    assert_same_tree(&tree(&mount.at("in")), &want);
    rsync(&mount.at("in"), &mount.host().join("out"));
    assert_same_tree(&tree(&mount.host().join("out")), &want);
    // In place, as with --inplace over an existing file.
    shell(
        mount.path(),
        "rsync -a --inplace in/page in/big2/ 2>/dev/null || true
         rsync -a --inplace --no-whole-file in/big2 copy; echo more >> in/big2
         rsync -a --inplace --no-whole-file in/big2 copy; cmp in/big2 copy",
    );
}

fn tar_with_xattrs_and_acls(setup: Setup) {
    if let Some(reason) = missing(&["setfattr", "setfacl"]) {
        return setup.skip(&reason);
    }
    let mut mount = setup.mount();
    let want = outside(&mount);
    // POSIX.1 archives keep nanoseconds; `trusted` needs to be asked for.
    let options = "--format=posix --numeric-owner --sparse --acls --xattrs --xattrs-include='*'";
    shell(&mount.host(), &format!("tar {options} -C . -cf archive.tar tree"));
    shell(mount.path(), &format!("mkdir in; tar {options} -C in -xpf {}/archive.tar", mount.host().display()));
    assert_same_tree(&tree(&mount.at("in/tree")), &want);
    assert_still_sparse(&mount.at("in/tree"));
    mount.remount();
    // From the mount, archive on the mount.
    shell(
        mount.path(),
        &format!(
            "tar {options} -C in -cf again.tar tree; tar {options} -C in --compare -f again.tar
             mkdir {out}; tar {options} -C {out} -xpf again.tar",
            out = mount.host().join("out").display()
        ),
    );
    assert_same_tree(&tree(&mount.host().join("out/tree")), &want);
}

fn mv_in_and_out(setup: Setup) {
    if let Some(reason) = missing(&["setfattr", "setfacl"]) {
        return setup.skip(&reason);
    }
    let mut mount = setup.mount();
    let want = outside(&mount);
    shell(mount.path(), &format!("mv {}/tree in", mount.host().display()));
    assert_same_tree(&tree(&mount.at("in")), &want);
    // Within: a rename, with and without something in the way.
    shell(
        mount.path(),
        "mkdir there; mv in there/; mv there/in .; mv in/deep/a/b/file-1 in/deep/a/b/file-2
         mkdir target; mv -T in/empty target",
    );
    // The renames have touched directory times.
    let renamed = |name: &[u8]| matches!(name, b"" | b"empty" | b"deep/a/b" | b"deep/a/b/file-1" | b"deep/a/b/file-2");
    assert_same_tree_but(&tree(&mount.at("in")), &want, renamed);
    mount.remount();
    assert_same_tree_but(&tree(&mount.at("in")), &want, renamed);
    assert_eq!(std::fs::read_to_string(mount.at("in/deep/a/b/file-2")).unwrap(), "file 1\n");
    shell(mount.path(), &format!("mv in {}/out", mount.host().display()));
    assert_same_tree_but(&tree(&mount.host().join("out")), &want, renamed);
    assert!(!mount.at("in").exists());
}

fn git_clone_fsck_gc(setup: Setup) {
    if let Some(reason) = missing(&["git"]) {
        return setup.skip(&reason);
    }
    let mut mount = setup.mount();
    // A repository with some history, made outside, so that git alone decides what it is.
    shell(
        &mount.host(),
        r#"
        git init -q -b main origin; cd origin
        for i in $(seq 40); do
            mkdir -p dir-$((i % 7)); seq $((i * 50)) > dir-$((i % 7))/file-$i
            head -c $((i * 1000)) /dev/urandom > blob-$((i % 5)); ln -sf file-$i link
            git add -A; git commit -q -m "commit $i"
            if [ $((i % 10)) = 0 ]; then git tag -a v$i -m v$i; git branch b$i; fi
        done
        "#,
    );
    let origin = mount.host().join("origin");
    shell(
        mount.path(),
        &format!(
            r#"
            git clone -q --no-hardlinks {origin} clone
            git -C clone fsck --full --strict
            git clone -q clone local
            cd local
            for i in $(seq 20); do echo $i >> own; git add -A; git commit -q -m "own $i"; done
            git checkout -q -b other HEAD~10; echo other > other; git add -A; git commit -q -m other
            git checkout -q main; git merge -q -m merge other
            git gc -q --aggressive --prune=now
            git fsck --full --strict
            git -C ../clone fetch -q ../local main:merged
            test -z "$(git status --porcelain)"
            "#,
            origin = origin.display()
        ),
    );
    let head = shell(&mount.at("local"), "git rev-parse HEAD");
    mount.remount();
    shell(
        mount.path(),
        r#"
        for repo in clone local; do git -C $repo fsck --full --strict; done
        test -z "$(git -C local status --porcelain)"
        git -C clone repack -q -a -d; git -C clone fsck --full
        git clone -q local third; diff -r --no-dereference -x .git local third
        "#,
    );
    assert_eq!(shell(&mount.at("clone"), "git rev-parse merged"), head);
}

fn sqlite_wal_with_mmap_and_two_writers(setup: Setup) {
    if let Some(reason) = missing(&["sqlite3"]) {
        return setup.skip(&reason);
    }
    let mut mount = setup.mount();
    let db = mount.at("tensors.db");
    let sql = |script: &str| {
        let mut command = Command::new("sqlite3");
        command.args(["-bail", "-cmd", ".timeout 600000"]).arg(&db).arg(script);
        run_ok(&mut command)
    };
    let mode = sql("PRAGMA journal_mode=WAL; CREATE TABLE t(writer, n, b BLOB, UNIQUE(writer, n));");
    assert_eq!(mode.trim(), "wal");
    // Two writers and a reader at once; -shm is a shared mapping between their processes.
    let writer = |name: &str| {
        let mut script = ".timeout 600000\nPRAGMA mmap_size=268435456;\nPRAGMA synchronous=NORMAL;\n".to_owned();
        for n in 0..400 {
            script += &format!("INSERT INTO t VALUES('{name}', {n}, randomblob({}));\n", (n * 37) % 9000 + 1);
        }
        script += "PRAGMA wal_checkpoint(TRUNCATE);\n";
        let input = mount.host().join(format!("{name}.sql"));
        std::fs::write(&input, script).unwrap();
        Command::new("sqlite3")
            .arg("-bail")
            .arg(&db)
            .stdin(std::fs::File::open(input).unwrap())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut writers = [writer("one"), writer("two")];
    let mut last = 0;
    while writers.iter_mut().any(|w| w.try_wait().unwrap().is_none()) {
        let count = sql("PRAGMA mmap_size=268435456; SELECT count(*) FROM t;");
        let count: u64 = count.lines().last().unwrap().parse().unwrap();
        assert!(count >= last, "a reader saw {count} rows after {last}");
        last = count;
    }
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    let check = "PRAGMA integrity_check; SELECT count(*), sum(length(b)) FROM t;";
    let blobs: u64 = (0..400).map(|n| n * 37 % 9000 + 1).sum::<u64>() * 2;
    let want = format!("ok\n800|{blobs}\n");
    assert_eq!(sql(check), want);
    mount.remount();
    assert_eq!(sql(check), want);
    sql("PRAGMA mmap_size=268435456; DELETE FROM t WHERE writer='two'; VACUUM; PRAGMA journal_mode=DELETE;");
    assert_eq!(sql("PRAGMA integrity_check; SELECT count(*) FROM t;"), "ok\n400\n");
}
