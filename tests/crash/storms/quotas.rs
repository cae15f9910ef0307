//! Quotas of the host, in a guest: the kernel here may have none.

use std::fs::File;

use serde_json::Value;
use tensorfs_tests::skip;

use crate::guest::{BEGIN, Guest, prepared};

/// A way to limit a pool by a quota of its host: the filesystem, with whose quotas, and how the pool is mounted.
struct Limited {
    name: &'static str,
    host: &'static str,
    whose: &'static str,
    options: &'static str,
}

const fn limited(name: &'static str, host: &'static str, whose: &'static str, options: &'static str) -> Limited {
    Limited { name, host, whose, options }
}

const LIMITED: [Limited; 8] = [
    limited("user", "ext4", "user 0", "--passthrough on"),
    limited("user-off", "ext4", "user 0", "--passthrough off"),
    limited("project", "ext4", "project 7", "--passthrough on"),
    limited("project-off", "ext4", "project 7", "--passthrough off"),
    limited("project-keeper", "ext4", "project 7", "--passthrough on -o keeper"),
    limited("project-xfs", "xfs", "project 7", "--passthrough on"),
    limited("project-xfs-off", "xfs", "project 7", "--passthrough off"),
    limited("project-xfs-keeper", "xfs", "project 7", "--passthrough on -o keeper"),
];

/// In KiB.
const QUOTA: u64 = 40 << 10;

/// Proves B4, S2.
#[test]
fn a_quota_of_the_host_holds_whoever_moves_the_bytes() {
    let prepared = match prepared() {
        Ok(prepared) => prepared,
        Err(reason) => return skip("quotas", &reason),
    };
    let script = format!(
        r#"{BEGIN}
modprobe virtio_pci
modprobe virtio_blk
modprobe quota_v2
modprobe xfs
until [ -b /dev/vda ]; do sleep 0.1; done
host() {{
    case $1 in
    ext4) mkfs.ext4 -F -q -I 256 -O quota,project -E quotatype=usrquota:prjquota /dev/vda ;;
    xfs) mkfs.xfs -f -q /dev/vda ;;
    esac && mount -t $1 -o usrquota,prjquota /dev/vda /pool || exit 1
    mkdir /pool/limited
    tensorfs-test-storm in-project 7 /pool/limited || exit 1
}}
try() {{
    out=/share/$1 pool=/pool/limited/p
    host $2
    tensorfs-test-storm quota $3 $4 /dev/vda $((QUOTA << 10)) || exit 1
    shift 4
    tensorfs create $pool >/dev/null
    tensorfs mount $pool /mnt --log $out.log "$@" || exit 1
    tensorfs info --json /mnt >$out.info
    df -P -k /mnt | awk 'NR > 1 {{ print $2 }}' >$out.df
    case "$*" in
    # Another server takes over.
    *keeper*) kill -9 $(sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' $out.info | head -1) ;;
    esac
    echo kept >/mnt/kept
    dd if=/dev/zero of=/mnt/large bs=1M count=64 2>$out.large
    n=0
    while mkdir /mnt/directory-$n 2>$out.mkdir && [ $n -lt 100 ]; do n=$((n + 1)); done
    cat /mnt/kept /mnt/large >/dev/null && echo readable >$out.readable
    du -k -s $pool | awk '{{ print $1 }}' >$out.du
    rm /mnt/large && tensorfs sync /mnt
    dd if=/dev/zero of=/mnt/again bs=1M count=16 2>$out.dd && stat -c %s /mnt/again >$out.again
    # A limit of the pool's own that is larger: then the server moves the bytes.
    tensorfs resize /mnt 100M >/dev/null || exit 1
    dd if=/dev/zero of=/mnt/large bs=1M count=64 2>$out.limited
    df -P -k /mnt | awk 'NR > 1 {{ print $2, $4 }}' >$out.limited-df
    du -k -s $pool | awk '{{ print $1 }}' >$out.limited-du
    tensorfs umount /mnt || exit 1
    tensorfs check --data $pool >/dev/null 2>&1
    echo $? >$out.checked
    umount /pool
}}
"#
    );
    let tries = LIMITED.iter().map(|it| format!("try {} {} {} {}\n", it.name, it.host, it.whose, it.options));
    let script = script.replace("QUOTA", &QUOTA.to_string()) + &tries.collect::<String>() + "echo done >/share/done\n";
    let mut guest = Guest::new(prepared, &script);
    let disk = guest.path().join("disk");
    File::create_new(&disk).unwrap().set_len(400 << 20).unwrap();
    guest = guest.with_disk(&disk);
    guest.boot().wait();
    assert_eq!(guest.read("done").trim(), "done", "{}", guest.console());
    let mut wrong = Vec::new();
    for Limited { name, host, whose, options } in LIMITED {
        let read = |what: &str| guest.read(&format!("{name}.{what}")).trim().to_owned();
        let number = |what: &str| read(what).parse::<u64>().unwrap_or(u64::MAX);
        let (heard, of_project) = (read("large"), whose.starts_with("project"));
        let full = if host == "xfs" && of_project { "No space left on device" } else { "Disk quota exceeded" };
        let found = format!("{name}: dd: {heard:?}, df {} KiB, du {} KiB", read("df"), read("du"));
        eprintln!("{found}, with a limit {} {}", read("limited"), read("limited-df"));
        let info: Value = serde_json::from_str(&read("info")).unwrap_or_default();
        let holds = [
            info["passthrough"] == options.contains("passthrough on"),
            heard.contains(full) && read("limited").contains(full),
            number("du") <= QUOTA && number("limited-du") <= QUOTA,
            !of_project || number("df") <= QUOTA,
            read("mkdir").is_empty() && read("readable") == "readable",
            read("again") == "16777216",
            read("checked") == "0",
        ];
        if holds.contains(&false) {
            wrong.push(format!("{found}: {holds:?}\n{}", read("log")));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), guest.console());
}

/// The hosts of pools whose directories have quotas, and how the pools are mounted.
const DIRECTORIES: [Limited; 4] = [
    limited("directory", "ext4", "", "--passthrough on"),
    limited("directory-off", "ext4", "", "--passthrough off"),
    limited("directory-keeper", "ext4", "", "--passthrough on -o keeper"),
    limited("directory-xfs", "xfs", "", "--passthrough on"),
];

/// Also over what was there before, what is replaced, and what is written after another mount.
///
/// Proves B18.
#[test]
fn quotas_of_directories_hold() {
    let prepared = match prepared() {
        Ok(prepared) => prepared,
        Err(reason) => return skip("quotas::quotas_of_directories_hold", &reason),
    };
    let script = format!(
        r#"{BEGIN}
modprobe virtio_pci
modprobe virtio_blk
modprobe quota_v2
modprobe xfs
until [ -b /dev/vda ]; do sleep 0.1; done
write() {{
    dd if=/dev/zero of=/mnt/$1 bs=1M count=$2 2>$out.$3
}}
try() {{
    out=/share/$1
    case $2 in
    ext4) mkfs.ext4 -F -q -I 256 -O quota,project -E quotatype=usrquota:prjquota /dev/vda ;;
    xfs) mkfs.xfs -f -q /dev/vda ;;
    esac
    mount -t $2 /dev/vda /pool || exit 1
    shift 2
    tensorfs create /pool/p >/dev/null
    tensorfs mount /pool/p /mnt --log $out.log "$@" || exit 1
    mkdir -p /mnt/a/old /mnt/b
    write a/old/f 4 before
    # Not mounted with them.
    tensorfs quota set /mnt/a 24M 2>$out.without && exit 1
    tensorfs umount /mnt && umount /pool && mount -o usrquota,prjquota /dev/vda /pool || exit 1
    tensorfs mount /pool/p /mnt --log $out.log "$@" || exit 1
    tensorfs info --json /mnt >$out.info
    # Open to write all the while.
    exec 3>/mnt/a/old/open
    tensorfs quota set /mnt/a 24M >$out.set 2>&1 || exit 1
    dd if=/dev/zero bs=1M count=2 >&3 2>$out.open
    exec 3>&-
    tensorfs sync /mnt
    tensorfs quota show --json /mnt >$out.counted
    case "$*" in
    *keeper*) kill -9 $(sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' $out.info | head -1) ;;
    esac
    write b/free 40 free
    write a/old/large 40 large
    ln /mnt/b/free /mnt/a/free 2>$out.ln
    cat /mnt/a/old/f /mnt/a/old/large >/dev/null && echo readable >$out.readable
    rm /mnt/a/old/large && tensorfs sync /mnt
    # One more segment, or two.
    write a/old/f 6 replaced
    tensorfs sync /mnt
    tensorfs quota show --json /mnt/a/old >$out.again
    tensorfs umount /mnt || exit 1
    tensorfs mount /pool/p /mnt --log $out.log "$@" || exit 1
    write a/after 40 mounted
    tensorfs quota set /mnt/a 34M >$out.set 2>&1 || exit 1
    tensorfs quota set /mnt/a/old 4M 2>&1 >$out.nested || exit 1
    write a/old/more 4 nested
    tensorfs quota show /mnt >$out.shown
    tensorfs quota clear /mnt/a/old >/dev/null || exit 1
    rm -f /mnt/a/old/more && tensorfs sync /mnt
    tensorfs quota show --json /mnt >$out.whole
    tensorfs quota clear /mnt/a >/dev/null || exit 1
    write a/cleared 40 cleared
    tensorfs quota show --json /mnt >$out.none
    tensorfs umount /mnt || exit 1
    tensorfs check --data /pool/p >/dev/null 2>&1
    echo $? >$out.checked
    mkdir /pool/whole && tensorfs-test-storm in-project 7 /pool/whole && tensorfs create /pool/whole/p >/dev/null
    tensorfs mount /pool/whole/p /mnt --log $out.log "$@" && mkdir /mnt/a || exit 1
    tensorfs quota set /mnt/a 24M 2>$out.in-project && exit 1
    tensorfs umount /mnt && umount /pool || exit 1
}}
"#
    );
    let tries = DIRECTORIES.iter().map(|it| format!("try {} {} {}\n", it.name, it.host, it.options));
    let script = script + &tries.collect::<String>() + "echo done >/share/done\n";
    let mut guest = Guest::new(prepared, &script);
    let disk = guest.path().join("disk");
    File::create_new(&disk).unwrap().set_len(400 << 20).unwrap();
    guest = guest.with_disk(&disk);
    guest.boot().wait();
    assert_eq!(guest.read("done").trim(), "done", "{}", guest.console());
    const MIB: u64 = 1 << 20;
    let mut wrong = Vec::new();
    for Limited { name, host, options, .. } in DIRECTORIES {
        let read = |what: &str| guest.read(&format!("{name}.{what}")).trim().to_owned();
        // Of the only directory that has one.
        let used = |what: &str| {
            let rows: Vec<Value> = serde_json::from_str(&read(what)).unwrap_or_default();
            let [row] = &rows[..] else { return (0, 0) };
            (row["used"].as_u64().unwrap_or(0), row["limit"].as_u64().unwrap_or(0))
        };
        let full = if host == "xfs" { "No space left on device" } else { "Disk quota exceeded" };
        let is_full = |what: &str| read(what).contains(full);
        // XFS sets some aside ahead of appends.
        let more = if host == "xfs" { 8 * MIB } else { MIB };
        let within = |(used, limit): (u64, u64), of: u64, holds: u64| used >= of && used <= of + more && limit == holds;
        let info: Value = serde_json::from_str(&read("info")).unwrap_or_default();
        let holds = [
            info["passthrough"] == options.contains("passthrough on"),
            read("without").contains("keeps no quotas of projects") && read("without").lines().count() == 1,
            within(used("counted"), 6 * MIB, 24 * MIB),
            is_full("large") && !is_full("free") && read("readable") == "readable",
            read("ln").contains("cross-device"),
            !is_full("replaced") && within(used("again"), 8 * MIB, 24 * MIB),
            is_full("mounted"),
            is_full("nested") && read("shown").lines().count() == 3,
            within(used("whole"), 23 * MIB + MIB / 2, 34 * MIB),
            !is_full("cleared") && read("none") == "[]",
            read("checked") == "0",
            read("in-project").contains("belongs to project 7"),
        ];
        eprintln!("{name}: {:?}, {:?}, {}", used("counted"), used("again"), read("large"));
        if holds.contains(&false) {
            let all =
                ["without", "set", "counted", "large", "ln", "again", "mounted", "nested", "shown", "whole", "none"];
            let said: String = all.iter().map(|what| format!("{what}: {}\n", read(what))).collect();
            wrong.push(format!("{name}: {holds:?}\n{said}{}", read("log")));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), guest.console());
}
